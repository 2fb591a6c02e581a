"""What each key and click does, without a terminal."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.cli.top.options import PAGE_NAMES
from neurontools.client.feed import FeedState, FeedStatus, LiveFeed
from neurontools.tui import keys
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.dialogs import send_signal
from neurontools.util.units import short_bytes_text
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import ASCII, UNICODE
from neurontools.views.drawing.lines import THEMES, line_width, plain_text
from neurontools.views.memory_sections import visible_nodes
from neurontools.views.screen import PAGES
from tests.harness.examples import examples, some
from tests.harness.model_parts import parts
from tests.harness.pressed_keys import FIRST_PID, WIDTH, draw, press, text
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.still_feed import StillFeed, snapshots


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_every_key_is_taken_on_every_page(page: str) -> None:
    feed = StillFeed(snapshots())
    for action in some(keys.ACTIONS, PAGE_NAMES.index(page)):
        dashboard = Dashboard(feed, DashboardSettings(page=page), UNICODE)
        draw(dashboard, 80, 24)
        assert dashboard.press(action.keys[0]), action
        lines = draw(dashboard, 80, 24).lines
        assert [line_width(line) for line in lines] == [80] * 24, action
        assert {style.split("+")[0] for line in lines for _, style in line} <= THEMES["dark"].styles.keys(), action
    assert text(Dashboard(feed, DashboardSettings(page=page), ASCII)).isascii()


def test_keys_and_pages_are_those_that_are_listed(dashboard: Dashboard) -> None:
    every = [key for action in keys.ACTIONS for key in action.keys]
    assert sorted(every) == sorted(set(every)), "none is given twice"
    assert keys.BY_KEY.keys() == set(every)
    assert not dashboard.press("f12")
    listed = "\n".join(keys.help_lines())
    assert all(action.shown in listed and action.text in listed for action in keys.ACTIONS)
    assert "Keys" in press(dashboard, "?")
    press(dashboard, "pagedown", "escape")
    assert dashboard.open_dialog is None
    assert tuple(page.name for page in PAGES) == PAGE_NAMES
    assert {page.key for page in PAGES} <= set(keys.BY_KEY)


def test_a_key_changes_the_interval_to_the_next() -> None:
    dashboard = Dashboard(LiveFeed("/nowhere/n.sock", 2.0), DashboardSettings(), UNICODE)
    for key, seconds in (("+", "1"), ("+", "0.5"), *(("-", each) for each in "1 2 5 10 30 60 60".split())):
        press(dashboard, key)
        assert f"refresh every {seconds} s," in dashboard.message


def test_the_time_axis_has_the_events_of_the_tab(dashboard: Dashboard) -> None:
    def marks(shown: str) -> int:
        row = next(line for line in shown.splitlines() if line.startswith(" events"))
        return len("".join(row.split()[1:]))

    everything = marks(press(dashboard, "h"))
    assert everything > 5
    assert marks(press(dashboard, "9")) < everything


def test_pause_holds_the_screen_while_more_comes() -> None:
    feed = StillFeed(snapshots()[:50])
    dashboard = Dashboard(feed, DashboardSettings(), UNICODE)
    held = press(dashboard, "p").splitlines()[1:20]
    assert "PAUSED" in text(dashboard)
    for moment in StillFeed(snapshots()).timeline.moments[50:]:
        feed.timeline.append(moment)
    assert text(dashboard).splitlines()[1:20] == held
    assert "40.0 s back" in text(dashboard)
    shown = press(dashboard, "p")
    assert "LIVE" in shown
    assert shown.splitlines()[1:20] != held


def test_steps_back_and_forward_and_the_scrubber(dashboard: Dashboard) -> None:
    shown = press(dashboard, "[")
    assert "PAST" in shown
    assert "1.0 s back" in shown
    assert "1 m 1 s back" in press(dashboard, "{")
    assert "1.0 s back" in press(dashboard, "}")
    row, line = next((number, line) for number, line in enumerate(text(dashboard).splitlines()) if "back [" in line)
    assert dashboard.click(line.index("[") + 1, row)
    assert "1 m 29 s back" in text(dashboard)
    assert "LIVE" in press(dashboard, "L")


def test_events_are_found_one_after_the_other(dashboard: Dashboard) -> None:
    times = sorted({moment.at_seconds for moment in dashboard.feed.timeline.moments if moment.events})
    assert len(times) > 3
    for key, expected in (("N", times[-1]), ("N", times[-2]), ("n", times[-1])):
        press(dashboard, key)
        assert dashboard.time.at == expected
    assert "no later event" in press(dashboard, "n")
    assert "corrected HBM ECC error" in press(dashboard, "L", "e")
    press(dashboard, "down", "enter")
    assert dashboard.time.at is not None


def test_a_lost_daemon_is_told_and_the_last_data_marked() -> None:
    feed = StillFeed(snapshots())
    dashboard = Dashboard(feed, DashboardSettings(), UNICODE)
    feed.status = FeedStatus(FeedState.LOST, "no monitor daemon at unix:/x", time.monotonic())
    shown = text(dashboard)
    assert "LOST, data" in shown
    assert "trying again: no monitor daemon at unix:/x" in shown
    assert dashboard.is_restless()


def test_clicks_choose_what_is_under_them(dashboard: Dashboard) -> None:
    def click(words: str, begin: str = "") -> None:
        rows = [plain_text(line) for line in draw(dashboard).lines]
        row = next(number for number, line in enumerate(rows) if words in line and line.lstrip("│").startswith(begin))
        assert dashboard.click(rows[row].index(words), row)

    click("synthetic-2", "Neuron Apps")
    assert dashboard.pid == snapshots()[-1].processes[2].pid
    click("Topology")
    assert dashboard.page == "topology"
    click("ND9")
    assert dashboard.device_index == 9
    assert not dashboard.click(WIDTH - 1, 0)
    dashboard.scroll(3)
    press(dashboard, "o", "1", "enter")
    click("ND4", "ND4")
    assert dashboard.list.cursor == 0, "its job, which holds all of them"
    press(dashboard, "x")
    click("ND4", "ND4")
    scene = dashboard.render_context()
    assert scene is not None
    assert visible_nodes(scene)[dashboard.list.cursor].key == "nd4"


@settings(max_examples=examples(12), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(parts(model.Snapshot), st.sampled_from(PAGE_NAMES))
def test_whatever_a_recording_holds_something_is_drawn(snapshot: model.Snapshot, page: str) -> None:
    dashboard = Dashboard(StillFeed([snapshot]), DashboardSettings(page=page), UNICODE)
    for key in ("x", "d", "enter", "j", "n", "K"):
        dashboard.press(key)
        assert [line_width(line) for line in draw(dashboard, 80, 24).lines] == [80] * 24


@pytest.mark.parametrize(
    ("flops", "ratio", "figure", "style"),
    [(4.2e12, 0.9, "4.20T", "load7"), (4.2e9, 0.3, "4.20G", "load2"), (0.0, 0.0, "0", "held")],
)
def test_flops_have_the_unit_that_fits_and_idle_is_told_from_free(
    flops: float, ratio: float, figure: str, style: str
) -> None:
    taken = ScenarioHost("trn1.2xlarge", "steady", neuroncores=1).at(30.0)
    first, second = taken.cores
    cores = (replace(first, flops_per_second=flops, utilization_ratio=ratio), second)
    dashboard = Dashboard(StillFeed([replace(taken, cores=cores)]), DashboardSettings(show_flops=True), UNICODE)
    assert f"[{figure:>7}]" in text(dashboard)
    assert "[   free]" in text(dashboard)
    styles = {part: style for line in draw(dashboard).lines for part, style in line}
    assert (styles[f"{figure:>7}"], styles["   free"]) == (style, "dim")


def test_a_key_and_a_setting_choose_what_the_overview_plots() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(plot_metric="flops"), UNICODE)
    shown = text(dashboard, (200, 60))
    assert re.search(r" FLOPS of ND 0-7: [\d.]+ TFLOPS .* HBM of ND 0-7: ", shown)
    assert re.search(r"^ *[\d.]+[TP] .* 100%", shown, re.MULTILINE), "the scale has its unit"
    assert "FLOPS of" in text(dashboard, (80, 60)), "a narrow screen has the chosen plot"
    for metric, left, right in (
        ("executions", "Executions of the host: ", "HBM of the host: "),
        ("memory", "HBM of ND 0-7: ", "Utilization of ND 0-7: "),
        ("utilization", "Utilization of ND 0-7: ", "HBM of ND 0-7: "),
    ):
        shown = press(dashboard, "M", size=(200, 60))
        assert re.search(f" {left}[\\d.]+.* {right}[\\d.]+", shown), metric
        assert dashboard.settings.values_to_save()["plot_metric"] == metric


def test_the_cursor_stays_on_its_process() -> None:
    feed = StillFeed(snapshots()[:50])
    dashboard = Dashboard(feed, DashboardSettings(), UNICODE)
    press(dashboard, "w", "x", "down", "down", "down")
    chosen = dashboard.selected_pid
    press(dashboard, "I")
    assert dashboard.selected_pid == chosen, "when the order changes"
    assert dashboard.list.cursor == 1 + 31 - 2
    press(dashboard, "o", "down", "down")
    selected = dashboard.selected_rows["overview"]
    fewer = [replace(each, processes=each.processes[1:]) for each in snapshots()[49:51]]
    feed.timeline.append(StillFeed(fewer).timeline.moments[1])
    draw(dashboard)
    assert (dashboard.selected_rows["overview"], dashboard.list.cursor) == (selected, 1), "when one before it ends"


def test_of_a_job_what_passes_is_summed_up(dashboard: Dashboard) -> None:
    rows = press(dashboard, "w", "/", *"cores=0-3", "enter").splitlines()
    job = next(line for line in rows if "4 ranks" in line)
    assert " 0-3 " in job
    one = next(line for line in rows if f" {FIRST_PID} " in line)
    assert one.split()[3] == "0"
    figures = dashboard.render_context().figures.by_pid  # type: ignore[union-attr]
    memory = sum(figures[FIRST_PID + number].device_memory_bytes or 0 for number in range(4))
    assert f" {short_bytes_text(memory)} " in job
    assert "so it stays open" in press(dashboard, "enter")


def test_read_only_sends_no_signals() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(page="processes"), UNICODE, is_read_only=True)
    assert "--read-only: no signals are sent" in press(dashboard, "f9")
    assert dashboard.open_dialog is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "SIGCONT sent to PID {pid}"),
        ({"started_at_unix_seconds": 1.0}, "PID {pid} is another process by now; nothing was sent"),
        ({"synthetic": True}, "PID {pid} is synthetic: there is no such process"),
        ({"pid": 2**22 + 1}, "PID 4194305 has ended"),
        ({"pid": -1}, "PID -1: Invalid argument"),
    ],
)
def test_a_signal_is_for_the_process_that_was_chosen(changes: dict[str, Any], told: str) -> None:
    process = replace(process_of(os.getpid(), "python", (0,)), **changes)
    assert send_signal(process, "SIGCONT") == told.format(pid=os.getpid())


def test_signals_need_live_data_and_a_process() -> None:
    dashboard = Dashboard(StillFeed([snapshot_of("trn1.2xlarge")]), DashboardSettings(), UNICODE)
    assert "no process is selected" in press(dashboard, "K")
    dashboard.feed.status = FeedStatus(FeedState.LOST, "gone")
    press(dashboard, "K")
    assert "signals can be sent only while" in dashboard.message
