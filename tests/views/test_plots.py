"""Plots, the time axis and the heat map, as they are drawn."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from neurontools.client.events import EventSeverity, HostEvent
from neurontools.client.samples import HostQuantity
from neurontools.client.timeline import HostTimeline
from neurontools.model import DeviceMemory
from neurontools.views.drawing.glyphs import ASCII, BLOCKS, UNICODE, Glyphs, glyphs_for
from neurontools.views.drawing.lines import line_width, plain_text
from neurontools.views.drawing.plots import Plot, percent_label, plot_columns, plot_lines, round_up_scale, time_axis
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.history_page import heatmap_page, history_page
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import StillFeed, snapshots

WIDTH, HEIGHT = 120, 33
LEFT = 20  # where the axis begins, in a terminal so wide


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def scene_of(
    seconds: range | list[int] = range(1, 91), *, scenario: str = "ecc-burst", **choices: Any
) -> RenderContext:
    """The last of these seconds of a scenario, with those before it as the past."""
    taken = snapshots("trn1.32xlarge", scenario)
    timeline = StillFeed([taken[second - 1] for second in seconds]).timeline
    return of(timeline, **choices)


def of(timeline: HostTimeline, **choices: Any) -> RenderContext:
    index = len(timeline) - 1
    context = RenderContext.from_snapshot(timeline.snapshot(index), **choices)
    context.series, context.events = timeline.series(index), timeline.events(index)
    return context


def lines(context: RenderContext, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    draw = heatmap_page if context.page == "heatmap" else history_page
    page = draw(context, width, height)
    assert {line_width(line) for line in page.lines} == {width}
    assert len(page.lines) <= height
    return [plain_text(line).ljust(width) for line in page.lines]


@pytest.mark.parametrize("glyphs", [UNICODE, BLOCKS, ASCII], ids=["braille", "blocks", "ascii"])
def test_one_moment_is_at_one_column_of_all_plots(glyphs: Glyphs) -> None:
    seen = [second for second in range(1, 91) if not 45 <= second < 72]
    drawn = lines(scene_of(seen, glyphs=glyphs, page="history"))
    bottoms = [*drawn[3:6], *(line for line in drawn if line[:LEFT].strip() == "0")]
    assert len(bottoms) == 6
    gaps = {tuple(column for column in range(LEFT, WIDTH - 1) if line[column] == " ") for line in bottoms}
    (gap,) = gaps
    assert gap == tuple(range(gap[0], gap[-1] + 1))
    cells = WIDTH - LEFT - 1
    assert abs(len(gap) - 27 / 60 * cells) <= 2
    assert drawn[-2][gap[0] : gap[-1] + 1].strip().strip("".join((glyphs.warn, glyphs.bad, glyphs.info))) == "no data"


def test_the_plots_of_a_core_have_nothing_of_the_next() -> None:
    taken = snapshots("trn1.32xlarge", "ecc-burst")[:20]
    idle = replace(taken[0].cores[1], utilization_ratio=0.0, flops_per_second=0.0, memory=DeviceMemory())
    others = [replace(each, cores=(each.cores[0], idle, *each.cores[2:])) for each in taken]
    scenes = (of(StillFeed(each).timeline, page="history", core_index=0) for each in (taken, others))
    assert len({tuple(lines(scene, height=11)) for scene in scenes}) == 1


def test_clock_times_stand_where_their_moments_are() -> None:
    context = scene_of()
    axis = time_axis(context, WIDTH)
    assert axis is not None
    clock = lines(context)[-1]
    labels = [at for at, character in enumerate(clock) if character == UNICODE.tick]
    assert len(labels) >= 4
    shown = context.snapshot.taken_at_unix_seconds
    for at in labels:
        told = clock[at + 1 : at + 9]
        cell = axis.cell_at(axis.shown_seconds - (shown % 3600 - (int(told[3:5]) * 60 + int(told[6:8]))))
        assert cell == at - LEFT
    heading, *_, labels_of_hour = hour = lines(scene_of(window_seconds=3600.0))
    assert {len(label) for label in labels_of_hour.split()} == {len("╵03:05")}
    assert "last 1 h" in heading
    for line in hour[3:6]:
        assert not line[LEFT:-6].strip(), "a minute is a small part of it"
        assert line[-6:].strip()


def test_events_stand_at_their_moment_the_gravest_of_a_cell() -> None:
    context = scene_of()
    shown = context.snapshot.taken_at_unix_seconds
    axis = time_axis(context, WIDTH)
    assert axis is not None
    marks = ((300.0, "CRITICAL"), (30.0, "CRITICAL"), (30.0, "INFO"), (20.0, "WARNING"), (10.0, "INFO"))
    context.events = tuple(
        HostEvent(shown, "error", EventSeverity[name], "", at_seconds=axis.shown_seconds - ago) for ago, name in marks
    )
    drawn = lines(context)[-2]
    found = {column: character for column, character in enumerate(drawn[LEFT:]) if character != " "}
    signs = ((30.0, "✗"), (20.0, "▲"), (10.0, "•"))
    assert found == {axis.cell_at(axis.shown_seconds - ago): sign for ago, sign in signs}


def test_a_value_is_as_high_as_it_says() -> None:
    ramp = [step / 8 for step in range(9)]
    assert plot_columns([None, *ramp[1:]], 1, ASCII, 1.0) == [" .:-=+*%#"]
    assert plot_columns([0.0, 1.0], 2, BLOCKS, 1.0) == [" █", "▁█"]
    assert plot_columns([0.25, 0.5, None, 1.0], 1, UNICODE, 1.0) == ["⣠⢸"]
    assert plot_columns([9.0, -1.0, float(2**60), 0.0], 1, UNICODE, 1.0) == ["⣇⣇"]
    assert glyphs_for(is_ascii=False, terminal="linux") is BLOCKS, "its console has no braille"
    assert glyphs_for(is_ascii=False, terminal="xterm-256color") is UNICODE
    assert glyphs_for(is_ascii=True, terminal="linux") is ASCII


def test_plots_take_the_room_there_is() -> None:
    context = scene_of()
    axis = time_axis(context, WIDTH)
    assert axis is not None
    plots = [Plot(f"plot {number}", HostQuantity("utilization_ratio"), 1.0, percent_label) for number in range(5)]
    assert all(len(plot_lines(context, plots, axis, WIDTH, height)) == height for height in range(1, 40))


@pytest.mark.parametrize("page", ["history", "heatmap"])
def test_a_past_that_is_loading_says_so(page: str) -> None:
    context = scene_of(page=page, clock=ShownMoment(is_loading_past=True))
    assert "loading history" in lines(context)[0]
    context.series = None
    assert any("loading history" in line for line in lines(context)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_heat_map_shows_who_the_others_wait_for(glyphs: Glyphs) -> None:
    drawn = lines(scene_of(range(1, 36), scenario="stuck-core", page="heatmap", glyphs=glyphs), height=38)
    rows = [line[LEFT:-1].strip() for line in drawn[2:34]]
    idle, busy = glyphs.held, glyphs.heat[-1]
    assert rows[0].endswith(busy * 10)
    assert all(row.endswith(idle * 10) for row in rows[1:])
    assert all(sum(map(row.count, glyphs.heat[4:])) > 5 for row in rows)


def test_the_heat_map_marks_a_stuck_core_in_its_line() -> None:
    context = scene_of(range(1, 90), scenario="stuck-core", page="heatmap", window_seconds=300.0)
    stuck = [event for event in context.events if event.kind == "stuck"]
    assert [event.core_index for event in stuck] == [0]
    drawn = lines(context, height=38)
    assert UNICODE.bad in drawn[2][LEFT:]
    assert not any(UNICODE.bad in line for line in drawn[3:34])


def test_free_idle_and_unknown_are_three_things() -> None:
    host = ScenarioHost("trn1.32xlarge", "idle")
    drawn = lines(of(StillFeed(host.at(float(second)) for second in range(1, 20)).timeline, page="heatmap"))
    row = drawn[2][LEFT:-1]
    assert row.startswith(" " * 60)
    assert row.strip().strip("?") == UNICODE.free * len(row.strip().strip("?"))


def test_the_heat_map_scrolls_and_follows_the_tab() -> None:
    host = ScenarioHost("trn2.48xlarge", "steady", lnc=1)
    timeline = StillFeed(host.at(float(second)) for second in range(1, 4)).timeline
    context = of(timeline, page="heatmap", cursor=127)
    page = heatmap_page(context, WIDTH, 30)
    assert (page.list_count, page.list_top) == (128, 128 - page.list_height)
    shown = [plain_text(line) for line in page.lines]
    assert any(" NC 127 " in line for line in shown)
    assert not any(" NC 0 " in line for line in shown)
    pid = context.snapshot.processes[0].pid
    mine = lines(replace(context, pid=pid, cursor=0))
    held = len(context.snapshot.processes[0].core_indices)
    assert f" {held} NeuronCore" in mine[0]
    assert f" of PID {pid} " in mine[0]
    assert sum(" NC " in line for line in mine) == held


@pytest.mark.parametrize(
    ("value", "is_binary", "top"),
    [
        *((value, False, top) for value, top in ((0, 1), (0.003, 0.005), (0.01, 0.01), (0.2, 0.2), (1, 1), (1.1, 2))),
        *((value, False, top) for value, top in ((2, 2), (2.1, 5), (5.1, 10), (10, 10), (11, 20), (700, 1000))),
        *((value, True, top) for value, top in ((0, 1), (0.5, 1), (1, 1), (3, 4), (4, 4), (1025, 2048))),
    ],
)
def test_a_scale_ends_with_a_round_number(value: float, is_binary: bool, top: float) -> None:
    assert round_up_scale(value, is_binary=is_binary) == pytest.approx(top, rel=1e-12)
