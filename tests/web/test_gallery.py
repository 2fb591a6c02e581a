"""Pictures and who looks at them: drawn once for all, brought up to date by what changed, and bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from neurontools.web.choice import Choice, choice_of
from neurontools.web.gallery import MOST_VIEWERS, Crowded, Gallery
from neurontools.web.picture import Picture
from neurontools.web.rows import Kind, Row
from tests.harness.waiting import wait_until_async


class Sketch:
    """A view whose rows are set."""

    pause_seconds = 1.0

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = (line("0"), line("same"))
        self.drawings = 0
        self.is_awake = False

    def draw(self, choice: Choice) -> tuple[str, tuple[Row, ...]]:
        self.drawings += 1
        return choice.page, self.rows

    def wake(self) -> None:
        self.is_awake = True

    def follow(self) -> None:
        assert self.is_awake

    def rest(self) -> None:
        self.is_awake = False


def line(text: str, kind: Kind = Kind.LINE) -> Row:
    return kind, (((text, "", ""),),)


def told(event: bytes) -> dict[str, Any]:
    name, _, data = event.decode().partition("\n")
    assert name == "event: rows"
    found: dict[str, Any] = json.loads(data.partition("data: ")[2])
    return found


async def event_of(stream: Any) -> dict[str, Any]:
    while True:
        piece = await anext(stream)
        if piece.startswith(b"event: rows"):
            return told(piece)


def test_only_rows_that_changed_are_sent() -> None:
    sketch = Sketch()
    picture = Picture(lambda: sketch.draw(Choice("p")))
    picture.redraw(0.0)
    assert told(picture.event_since(0)) == {
        "title": "p",
        "whole": [["l", [[["0", "", ""]]]], ["l", [[["same", "", ""]]]]],
    }
    sketch.rows = (line("1"), line("same"))
    picture.redraw(1.0)
    assert told(picture.event_since(1))["rows"] == [[0, ["l", [[["1", "", ""]]]]]]
    assert picture.event_since(1) is picture.event_since(1), "the same bytes for all"
    picture.redraw(2.0)
    assert picture.number == 2, "what is as it was is no news"


def test_who_missed_some_gets_what_changed_since_and_all_where_rows_came_or_went() -> None:
    sketch = Sketch()
    picture = Picture(lambda: sketch.draw(Choice("p")))
    for rows in ((line("0"), line("a")), (line("1"), line("a")), (line("1"), line("b"))):
        sketch.rows = rows
        picture.redraw(0.0)
    assert [place for place, _ in told(picture.event_since(1))["rows"]] == [0, 1]
    assert [place for place, _ in told(picture.event_since(2))["rows"]] == [1]
    sketch.rows = (line("1", Kind.HEADING), line("b"))
    picture.redraw(0.0)
    assert "whole" in told(picture.event_since(3))


def test_a_version_of_another_process_means_nothing() -> None:
    picture = Picture(lambda: ("p", (line("0"),)))
    picture.redraw(0.0)
    assert picture.number_of(picture.version) == 1
    for version in ("", "0.1", f"x{picture.version}", picture.version.replace(".1", ".-1"), picture.version + "²"):
        assert picture.number_of(version) == 0
    assert picture.number_of(picture.version + "999") == 1, "no version is later than the latest"


async def test_one_drawing_serves_all_viewers() -> None:
    gallery, sketch, choice = Gallery(), Sketch(), Choice("p")
    streams = [gallery.stream(sketch, choice, "") for _ in range(10)]
    firsts = [await event_of(stream) for stream in streams]
    assert all(first == firsts[0] for first in firsts)
    before = sketch.drawings
    sketch.rows = (line("1"), line("same"))
    gallery.news()
    seconds = await asyncio.gather(*[event_of(stream) for stream in streams])
    assert all("rows" in second for second in seconds)
    assert sketch.drawings <= before + 3, "not once a viewer"
    for stream in streams:
        await stream.aclose()
    assert gallery.viewers == 0
    gallery.close()
    assert not sketch.is_awake


async def test_a_slow_reader_skips_to_the_latest() -> None:
    gallery, sketch, choice = Gallery(), Sketch(), Choice("p")
    slow = gallery.stream(sketch, choice, "")
    await event_of(slow)
    picture = gallery.picture(sketch, choice)
    for number in range(1, 6):
        sketch.rows = (line(str(number)), line("same"))
        picture.redraw(0.0)
    assert (await event_of(slow))["rows"] == [[0, ["l", [[["5", "", ""]]]]]]
    await slow.aclose()
    gallery.close()


async def test_more_viewers_than_may_are_told() -> None:
    gallery, sketch = Gallery(), Sketch()
    streams = [gallery.stream(sketch, Choice("p"), "") for _ in range(MOST_VIEWERS + 1)]
    late = streams.pop()  # it was let in while there was room
    for stream in streams:
        await event_of(stream)
    with pytest.raises(Crowded, match="32 viewers look on"):
        gallery.stream(sketch, Choice("p"), "")
    with pytest.raises(StopAsyncIteration):
        await anext(late)
    await streams.pop().aclose()
    streams.append(gallery.stream(sketch, Choice("p"), ""))
    await event_of(streams[-1])
    for stream in streams:
        await stream.aclose()
    gallery.close()


async def test_a_flood_of_different_pages_is_refused_and_passes() -> None:
    now = 0.0
    gallery, sketch = Gallery(lambda: now), Sketch()

    def flood() -> None:
        for number in range(1000):
            gallery.picture(sketch, Choice("p", device=number))

    with pytest.raises(Crowded, match="too many pages"):
        flood()
    drawings = sketch.drawings
    assert drawings <= 64
    now = 10.0
    gallery.picture(sketch, Choice("q"))
    assert sketch.drawings == drawings + 1
    gallery.close()


async def test_a_view_rests_when_nobody_looks() -> None:
    now = 0.0
    gallery, sketch = Gallery(lambda: now), Sketch()
    gallery.picture(sketch, Choice("p"))
    assert sketch.is_awake
    now = 1000.0
    gallery.news()
    await wait_until_async(lambda: not sketch.is_awake)
    gallery.picture(sketch, Choice("p"))
    assert sketch.is_awake
    gallery.close()


async def test_a_fault_in_one_picture_stops_no_other() -> None:
    gallery, sketch, broken = Gallery(), Sketch(), Sketch()
    good, bad = gallery.stream(sketch, Choice("p"), ""), gallery.stream(broken, Choice("p"), "")
    await event_of(good)
    await event_of(bad)
    broken.rows = None  # type: ignore[assignment]
    sketch.rows = (line("1"), line("same"))
    gallery.news()
    assert "rows" in await event_of(good)
    await good.aclose()
    await bad.aclose()
    gallery.close()


def test_a_choice_is_in_its_address() -> None:
    choice = choice_of("history", "device=3&core=7&window=300&columns=160&unknown=1")
    assert choice == Choice("history", columns=160, device=3, core=7, window=300)
    assert choice_of("history", choice.query()[1:]) == choice
    assert Choice("p").query() == ""
    assert choice.query(core=None, device=0) == "?columns=160&window=300"


@pytest.mark.parametrize(
    "query",
    ["columns=121", "columns=1e2", "device=-1", "pid=²", "window=61", f"filter={'x' * 201}", "x" * 1001, "pid="],
)
def test_a_choice_that_can_not_be_meant_is_refused(query: str) -> None:
    with pytest.raises(ValueError):
        choice_of("history", query)
