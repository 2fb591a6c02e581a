"""No page ever breaks: any instance type, any terminal size, any choice, any text."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.client.events import EventSeverity, HostEvent, events_between
from neurontools.client.samples import Samples, Series, sample_snapshot
from neurontools.model import health
from neurontools.model.process import Job
from neurontools.rpc.convert import to_message
from neurontools.views.drawing.figures import DeviceFilter
from neurontools.views.drawing.glyphs import UNICODE, Dialog, draw_dialog
from neurontools.views.drawing.lines import TextPage, line_width, plain_text
from neurontools.views.drawing.render_context import LAYOUTS, RenderContext, ShownMoment
from neurontools.views.memory_sections import all_node_keys
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import PAGES, draw_screen
from tests.harness.examples import examples
from tests.harness.scenario_host import ScenarioHost

SIZES = st.tuples(st.integers(1, 260), st.integers(1, 80))
NASTY = (
    "\x1b[31mred\x07",
    "宽" * 300,
    "a" * 10_000,
    "\u202egnp.exe",
    "\udc80",
    "new\nline\ttab",
    "👩‍👩‍👧",
    "e\u0301" * 50,
)


def check(page: TextPage, width: int, height: int) -> None:
    assert len(page.lines) == height
    for line in page.lines:
        assert line_width(line) == width, line
        text = "".join(part for part, _ in line)
        assert "\x1b" not in text
        assert all(character == " " or character.isprintable() or character in "\u200d\u202e" for character in text)


HOSTS = {
    (name, lnc): ScenarioHost(name, "steady", lnc=lnc).at(30.0)
    for name, lnc in (
        ("trn1.2xlarge", None),
        ("trn1.32xlarge", None),
        ("inf2.48xlarge", None),
        ("trn2.48xlarge", 1),
        ("trn2.48xlarge", 2),
        ("trn2.3xlarge", 2),
        ("inf1.24xlarge", None),
    )
}


@settings(max_examples=examples(100))
@given(
    st.sampled_from(sorted(HOSTS, key=str)),
    SIZES,
    st.sampled_from([page.name for page in PAGES]),
    st.integers(0, 200),
    st.booleans(),
    st.sampled_from(["memory", "utilization"]),
)
def test_every_instance_type_fits_any_terminal(
    host: tuple[str, int | None], size: tuple[int, int], page: str, cursor: int, is_open: bool, colour_by: str
) -> None:
    width, height = size
    snapshot = HOSTS[host]
    context = RenderContext.from_snapshot(snapshot, page=page, cursor=cursor, colour_by=colour_by, show_flops=is_open)
    message = to_message(snapshot)
    context.series = Series(Samples(sample_snapshot(message, float(at)) for at in range(1, cursor + 2)))
    context.verdicts = health.verdicts(snapshot)
    context.events = tuple(HostEvent(float(at), "error", EventSeverity.WARNING, f"event {at}") for at in range(cursor))
    context.device_index = cursor % len(snapshot.devices)
    context.pid = snapshot.processes[cursor % len(snapshot.processes)].pid if cursor % 2 else None
    context.details_pid = snapshot.processes[0].pid if cursor % 5 == 0 else None
    context.opened = all_node_keys(context) if is_open else frozenset()
    context.is_tree_shown, context.layout = is_open and cursor % 3 == 0, LAYOUTS[cursor % 7 % 3]
    context.unfolded = frozenset(row.key for row in job_rows(context)) if is_open else frozenset()
    page_drawn = draw_screen(context, width, height)
    check(page_drawn, width, height)
    dialog = Dialog("Title", ("text " * 20, "宽" * 40), ("one", "two"), cursor % 2)
    check(draw_dialog(page_drawn, dialog, UNICODE, width, height), width, height)


@pytest.mark.slow
@pytest.mark.parametrize("text", NASTY)
def test_text_from_elsewhere_neither_breaks_the_layout_nor_reaches_the_terminal_raw(text: str) -> None:
    snapshot = HOSTS["trn1.32xlarge", None]
    nasty = tuple(
        replace(
            process,
            command=text,
            tag=text,
            user=text,
            runtime_version=text,
            job=Job(text) if process.pid % 2 else None,
            models=tuple(replace(loaded, name=text) for loaded in process.models),
        )
        for process in snapshot.processes
    )
    snapshot = replace(
        snapshot,
        processes=nasty,
        warnings=(text,),
        instance=replace(snapshot.instance, instance_id=text, instance_type=text),
    )
    for page, size, details in product(PAGES, ((20, 5), (80, 24), (200, 50)), (None, nasty[0].pid)):
        context = RenderContext.from_snapshot(
            snapshot, page=page.name, details_pid=details, message=text, filter_text=text, pid=details
        )
        context.opened = all_node_keys(context)
        context.is_tree_shown = details is not None
        context.unfolded = frozenset(row.key for row in job_rows(context))
        if "\udc80" not in text:
            context.events = events_between(to_message(HOSTS["trn1.32xlarge", None]), to_message(snapshot))
        check(draw_screen(context, *size), *size)


def test_two_hundred_processes() -> None:
    snapshot = HOSTS["trn2.48xlarge", 1]
    many = tuple(replace(snapshot.processes[0], pid=pid) for pid in range(1000, 1200))
    snapshot = replace(snapshot, processes=many)
    for page in PAGES:
        for cursor in (0, 100, 199, 5000):
            context = RenderContext.from_snapshot(
                snapshot, page=page.name, cursor=cursor, pid=1199 if cursor == 100 else None
            )
            check(draw_screen(context, 80, 24), 80, 24)


def test_every_page_is_drawn_of_a_part() -> None:
    for page, size in product(PAGES, ((80, 24), (200, 50), (20, 5))):
        device_filter = DeviceFilter(frozenset((15,)))
        context = RenderContext.from_snapshot(
            HOSTS["trn1.32xlarge", None], device_filter, page=page.name, clock=ShownMoment("LIVE")
        )
        drawn = draw_screen(context, *size)
        check(drawn, *size)
        lines = [plain_text(line) for line in drawn.lines]
        assert size[0] == 20 or "1 of 16 devices" in lines[0]
        assert "missing" not in "\n".join(lines)
