"""The render cache: one rendering for all viewers, events with the changes, and limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.web.nodes import Node, changes, html, node
from neurontools.web.page_query import PageQuery, parse_page_query
from neurontools.web.render_cache import MAX_VIEWERS, CapacityExceeded, RenderCache, RenderedPage
from tests.harness.examples import examples
from tests.harness.waiting import wait_until_async


class Sketch:
    """A view whose content is set."""

    pause_seconds = 1.0

    def __init__(self) -> None:
        self.content = page_of("0", "same")
        self.drawings = 0
        self.is_awake = False

    def draw(self, choice: PageQuery) -> tuple[str, Node]:
        self.drawings += 1
        return choice.page, self.content

    def start(self) -> None:
        self.is_awake = True

    def process_data(self) -> None:
        assert self.is_awake

    def stop(self) -> None:
        self.is_awake = False


def page_of(*texts: str) -> Node:
    return node("main", *[node("p", text) for text in texts])


def content_of(event: bytes) -> dict[str, Any]:
    name, _, data = event.decode().partition("\n")
    assert name == "event: changes"
    found: dict[str, Any] = json.loads(data.partition("data: ")[2])
    return found


async def event_of(stream: Any) -> dict[str, Any]:
    while True:
        piece = await anext(stream)
        if piece.startswith(b"event: changes"):
            return content_of(piece)


class Hall:
    """A render cache of one sketch, with a clock that tests set."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.cache = RenderCache(lambda: self.now_seconds)
        self.sketch = Sketch()
        self.streams: list[Any] = []

    def look(self, view: Sketch | None = None) -> Any:
        self.streams.append(self.cache.stream(view or self.sketch, PageQuery("p"), "", f"client {len(self.streams)}"))
        return self.streams[-1]

    def rendered(self, choice: PageQuery) -> RenderedPage:
        return self.cache.rendered(self.sketch, choice)

    async def close(self) -> None:
        for stream in self.streams:
            await stream.aclose()
        assert self.cache.viewers == 0
        self.cache.close()
        assert not self.sketch.is_awake


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    found = Hall()
    yield found
    await found.close()


def test_only_what_changed_is_sent() -> None:
    sketch = Sketch()
    page = RenderedPage(lambda: sketch.draw(PageQuery("p")))
    page.redraw(0.0)
    whole = [["p", {}, ["0"]], ["p", {}, ["same"]]]
    assert content_of(page.event_since(0)) == {"title": "p", "whole": whole}
    sketch.content = page_of("1", "same")
    page.redraw(1.0)
    assert content_of(page.event_since(1))["changes"] == [[[0, 0], "text", "1"]]
    assert page.event_since(1) is page.event_since(1), "the same bytes for all"
    page.redraw(2.0)
    assert page.number == 2, "what is as it was is no news"


def test_who_missed_some_gets_what_changed_since_and_who_missed_many_gets_all() -> None:
    sketch = Sketch()
    page = RenderedPage(lambda: sketch.draw(PageQuery("p")))
    for texts in (("0", "a"), ("1", "a"), ("1", "b")):
        sketch.content = page_of(*texts)
        page.redraw(0.0)
    assert [path for path, _, _ in content_of(page.event_since(1))["changes"]] == [[0, 0], [1, 0]]
    assert [path for path, _, _ in content_of(page.event_since(2))["changes"]] == [[1, 0]]
    for number in range(8):
        sketch.content = page_of(str(number))
        page.redraw(0.0)
    assert "whole" in content_of(page.event_since(3))
    assert "changes" in content_of(page.event_since(4))


_TEXTS = st.sampled_from(["", "a", "b\x1b", "<i>"])
_ATTRIBUTES = st.dictionaries(st.sampled_from(["class_", "title", "data_x"]), st.one_of(st.none(), _TEXTS))


def _elements(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
    return st.builds(
        lambda tag, attributes, found: node(tag, *found, **attributes),
        st.sampled_from(["p", "b"]),
        _ATTRIBUTES,
        st.lists(children, max_size=3),
    )


_TREES = _elements(st.recursive(_TEXTS, _elements, max_leaves=8))


def patched(tree: Any, path: list[int], kind: str, content: Any) -> Any:
    """Applies a change as the script does."""
    if path:
        tag, attributes, children = tree
        place, *rest = path
        return (
            tag,
            attributes,
            (*children[:place], patched(children[place], rest, kind, content), *children[place + 1 :]),
        )
    if kind == "attributes":
        return tree[0], {name: at for name, at in {**tree[1], **content}.items() if at is not None}, tree[2]
    return (tree[0], tree[1], content) if kind == "children" else content


@settings(max_examples=examples(200), deadline=None)
@given(_TREES, _TREES)
def test_the_changes_lead_from_each_tree_to_each_other(before: Node, after: Node) -> None:
    found: Any = before
    for path, kind, content in changes(before, after):
        found = patched(found, path, kind, content)
    assert found == after
    assert "<i>" not in html(after)
    assert "\x1b" not in html(after)


def test_a_version_of_another_process_means_nothing() -> None:
    page = RenderedPage(lambda: ("p", page_of("0")))
    page.redraw(0.0)
    assert page.number_of(page.version) == 1
    for version in ("", "0.1", f"x{page.version}", page.version.replace(".1", ".-1"), page.version + "²"):
        assert page.number_of(version) == 0
    assert page.number_of(page.version + "999") == 1, "no version is later than the latest"


async def test_one_drawing_serves_all_viewers(hall: Hall) -> None:
    streams = [hall.look() for _ in range(10)]
    firsts = [await event_of(stream) for stream in streams]
    assert all(first == firsts[0] for first in firsts)
    before = hall.sketch.drawings
    hall.sketch.content = page_of("1", "same")
    hall.now_seconds = 10.0
    hall.cache.notify()
    seconds = await asyncio.gather(*[event_of(stream) for stream in streams])
    assert all("changes" in second for second in seconds)
    assert hall.sketch.drawings <= before + 3, "not once a viewer"


async def test_a_slow_reader_skips_to_the_latest(hall: Hall) -> None:
    slow = hall.look()
    await event_of(slow)
    page = hall.rendered(PageQuery("p"))
    for number in range(1, 6):
        hall.sketch.content = page_of(str(number), "same")
        page.redraw(0.0)
    assert (await event_of(slow))["changes"] == [[[0, 0], "text", "5"]]


async def test_more_viewers_than_may_are_told(hall: Hall) -> None:
    streams = [hall.look() for _ in range(MAX_VIEWERS + 1)]
    late = streams.pop()  # it was let in while there was room
    for stream in streams:
        await event_of(stream)
    with pytest.raises(CapacityExceeded, match="the limit of 32 viewers is reached"):
        hall.look()
    with pytest.raises(StopAsyncIteration):
        await anext(late)
    await streams[-1].aclose()
    await event_of(hall.look())


async def test_a_flood_of_different_pages_is_refused_and_passes(hall: Hall) -> None:
    def flood() -> None:
        for number in range(1000):
            hall.rendered(PageQuery("p", device=number))

    with pytest.raises(CapacityExceeded, match="too many pages"):
        flood()
    drawings = hall.sketch.drawings
    assert drawings <= 64
    hall.now_seconds = 10.0
    hall.rendered(PageQuery("q"))
    assert hall.sketch.drawings == drawings + 1


async def test_a_view_rests_when_nobody_looks(hall: Hall) -> None:
    hall.rendered(PageQuery("p"))
    assert hall.sketch.is_awake
    hall.now_seconds = 1000.0
    hall.cache.notify()
    await wait_until_async(lambda: not hall.sketch.is_awake)
    hall.rendered(PageQuery("p"))
    assert hall.sketch.is_awake


async def test_a_fault_in_one_page_stops_no_other(hall: Hall) -> None:
    broken = Sketch()
    good, bad = hall.look(), hall.look(broken)
    await event_of(good)
    await event_of(bad)
    del broken.content
    hall.sketch.content = page_of("1", "same")
    hall.now_seconds = 10.0
    hall.cache.notify()
    assert "changes" in await event_of(good)


def test_a_choice_is_in_its_address() -> None:
    choice = parse_page_query("history", "device=3&core=7&window=900&columns=160&unknown=1")
    assert choice == PageQuery("history", device=3, core=7, window=900)
    assert parse_page_query("history", choice.query()[1:]) == choice
    assert PageQuery("p").query() == ""
    assert choice.query(core=None, device=0) == "?window=900"


@pytest.mark.parametrize(
    "query",
    ["device=1e2", "device=-1", "details=²", "window=61", f"filter={'x' * 201}", "x" * 1001, "core="],
)
def test_a_choice_that_can_not_be_meant_is_refused(query: str) -> None:
    with pytest.raises(ValueError):
        parse_page_query("history", query)
