"""At which widths and heights a page gets another layout: columns, sections, keys, and what can be clicked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.models import fleet_models
from neurontools.fleet.states import worst_first
from neurontools.model import health
from neurontools.views.drawing.lines import TextPage
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.fleet_hosts import list_rows
from neurontools.views.fleet_page import FleetContext, fleet_page
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import PAGES, draw_screen
from tests.harness.faulty_host import faulty_host
from tests.harness.fleet import live, lost
from tests.harness.full_host import full_host
from tests.harness.pictures import is_as_stored
from tests.harness.still_feed import StillFeed, snapshots

GOLDEN = Path(__file__).parent / "golden"
HOST, FULL = faulty_host(), full_host()[-1]
WIDTHS, HEIGHTS = range(30, 190), range(6, 56)
USUAL = (130, 36)
PID = HOST.processes[1].pid
Draw = Callable[[int, int], TextPage]


def host_screen(page: str, **choices: Any) -> Draw:
    timeline = StillFeed(snapshots()[:40]).timeline
    context = RenderContext.from_snapshot(
        HOST, page=page, clock=ShownMoment("LIVE"), series=timeline.series(39), events=timeline.events(39), **choices
    )
    context.verdicts, context.ended = tuple(health.verdicts(HOST)), FULL.ended
    context.vcpus = (FULL.host.vcpus or ())[:1] * 96
    context.opened = frozenset({"nd0", "nd0/nc0"})
    context.unfolded = frozenset(row.key for row in job_rows(context))
    return lambda width, height: draw_screen(context, width, height)


def fleet_screen() -> Draw:
    states = [live("faulty", HOST), live("full", FULL), lost("gone", "no route")]
    context = FleetContext(
        *(list_rows(states, worst_first), tuple(states), fleet_jobs(states), fleet_models(states)), 100.0, 1.7e9, 1.0
    )
    return lambda width, height: fleet_page(context, width, height)


def past_screen() -> Draw:
    clock = ShownMoment("PAST", is_past=True)
    context = RenderContext.from_snapshot(replace(HOST, processes=()), page="processes", clock=clock)
    return lambda width, height: draw_screen(context, width, height)


SCREENS: dict[str, Callable[[], Draw]] = {
    **{page.name: lambda name=page.name: host_screen(name) for page in PAGES},  # type: ignore[misc]
    "compact": lambda: host_screen("overview", layout="compact"),
    "classic": lambda: host_screen("overview", layout="classic"),
    "tree": lambda: host_screen("overview", is_tree_shown=True, is_legend_shown=True),
    "details": lambda: host_screen("processes", details_pid=PID),
    "past": lambda: past_screen(),
    "fleet": fleet_screen,
}


def layout_of(page: TextPage) -> tuple[list[object], list[str]]:
    """Returns what makes a layout, without the sizes of its parts, and the words of its titles and keys."""
    rows: list[object] = []
    titles: list[str] = []
    for number, line in enumerate(page.lines):
        clicks = tuple((each.action, each.argument) for each in page.targets if each.row == number)
        words = [word for text, style in line if re.match("column|key", style) for word in text.split()]
        rows.append((tuple(dict.fromkeys(style for _, style in line)), tuple(words), clicks))
        titles += words
    return [row for row, _ in groupby(rows)], titles


def changes(draw: Draw, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    before: list[object] = []
    titles: list[str] = []
    for at, size in enumerate(sizes):
        rows, found = layout_of(draw(*size))
        if rows != before:
            new = [f"+{word}" for word in found if word not in titles]
            gone = [f"-{word}" for word in titles if word not in found]
            yield " ".join((str(size[0] if sizes[0][0] != sizes[-1][0] else size[1]), *(new + gone if at else ())))
        before, titles = rows, found


@pytest.mark.parametrize("name", SCREENS)
def test_layouts_change_at_the_sizes_that_are_stored(name: str) -> None:
    draw = SCREENS[name]()
    lines = (
        f"widths: {', '.join(changes(draw, [(width, USUAL[1]) for width in WIDTHS]))}\n",
        f"heights: {', '.join(changes(draw, [(USUAL[0], height) for height in HEIGHTS]))}\n",
    )
    file = f"layouts_{name}.txt"
    assert is_as_stored("".join(lines), GOLDEN / file), f"{file} differs; UPDATE_GOLDEN=1 writes it anew"
