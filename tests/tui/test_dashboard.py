"""What each key and click does, without a terminal."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.cli.top.options import PAGE_NAMES
from neurontools.client.feed import FeedState, FeedStatus, LiveFeed
from neurontools.tui import keys
from neurontools.tui.dashboard import Dashboard
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


def test_a_tab_makes_everything_follow_one_process(dashboard: Dashboard) -> None:
    assert ">[2]:synthetic-0<" in press(dashboard, "x", "2")
    shown = text(dashboard)
    assert "ND 0" in shown
    assert "ND 1 " not in shown  # the tree has its device alone
    figures = dashboard.render_context().figures.by_pid[dashboard.pid]  # type: ignore[union-attr,index]
    assert f"Avg: {figures.utilization_ratio:.2%}" in shown
    assert ">[3]:synthetic-1<" in press(dashboard, "d")
    assert ">[1]:all<" in press(dashboard, "a", "a")
    press(dashboard, "a")  # before the first comes the last
    assert dashboard.pid == snapshots()[-1].processes[-1].pid
    steady = Dashboard(StillFeed([ScenarioHost("trn1.32xlarge", "steady").at(30.0)]), DashboardSettings(), UNICODE)
    assert "ND 1-15: not in use by this process" in press(steady, "2")
    assert " all cores " in press(dashboard, "h", "1")
    shown = press(dashboard, "2")
    assert f" PID {dashboard.pid} " in shown
    assert " all cores " not in shown


def test_events_and_health_follow_the_tab(dashboard: Dashboard) -> None:
    press(dashboard, "L")
    everything = press(dashboard, "e")
    events = re.compile(r"(\d+) events? since")
    count = int(events.findall(everything)[0])
    assert re.search(r"Health: \d+ of 16 devices unhealthy", everything)
    assert "(for 1 m 15 s) (ND 0; the others alike)" in text(dashboard, (160, 40))
    shown = press(dashboard, "2")  # holds NC 0, of ND 0
    pid = dashboard.pid
    assert re.search(rf"Health of the devices of PID {pid}: (1 of 1 devices unhealthy|1 device is healthy)", shown)
    assert 0 < int(events.findall(shown)[0]) < count
    listed = [line for line in shown.splitlines() if "corrected HBM ECC" in line and "do:" not in line]
    assert listed
    assert all("ND 0:" in line or "ND 0 " in line for line in listed)
    press(dashboard, "down", "enter")
    moment = next(each for each in dashboard.feed.timeline.moments if each.at_seconds == dashboard.time.at)
    assert any(event.device_index == 0 or event.pid == pid for event in moment.events)


def test_the_time_axis_has_the_events_of_the_tab(dashboard: Dashboard) -> None:
    def marks(shown: str) -> int:
        row = next(line for line in shown.splitlines() if line.startswith(" events"))
        return len("".join(row.split()[1:]))

    everything = marks(press(dashboard, "h"))
    assert everything > 5
    assert marks(press(dashboard, "9")) < everything


def test_the_heat_map_leads_to_the_history_of_a_core(dashboard: Dashboard) -> None:
    assert "Utilization of 32 NeuronCores over time" in press(dashboard, "m")
    shown = press(dashboard, *["down"] * 5, "enter")
    assert dashboard.page == "history"
    assert (dashboard.device_index, dashboard.core_index) == (2, 5)
    assert "ND 2 NC 5 utilization" in shown


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


def test_topology_moves_around_the_torus(dashboard: Dashboard) -> None:
    shown = press(dashboard, "t")
    assert "4x4 2D torus, coloured by utilization" in shown
    assert "1 hop: 1,3-4,12" in shown
    press(dashboard, "left", "up")
    assert dashboard.device_index == 15
    assert "coloured by memory" in press(dashboard, "c")
    assert "ND 15" in press(dashboard, "enter")
    assert dashboard.page == "history"
    assert "NC30" in press(dashboard, "right")
    assert dashboard.core_index == 30
    assert "last 5 min" in press(dashboard, "l")


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


def test_the_legend_comes_with_the_help_and_goes_with_esc(dashboard: Dashboard) -> None:
    assert "held but idle" not in text(dashboard)
    press(dashboard, "question_mark", "escape")
    assert "held but idle" in text(dashboard)
    press(dashboard, "escape")
    assert "held but idle" not in text(dashboard)


def test_the_memory_tree_says_that_it_hides_the_jobs(dashboard: Dashboard) -> None:
    for height in (12, 24, 50):
        press(dashboard, "x")
        shown = [plain_text(line) for line in dashboard.draw(WIDTH, height).lines]
        assert any("Jobs: 1 job" in line for line in shown)
        assert "the memory tree takes the place of the jobs" in shown[-1]
        press(dashboard, "x")


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


def test_the_classic_layout_has_the_panels_of_the_original_and_its_tree_takes_the_keys() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(layout="classic"), UNICODE)
    panels = ("NeuronCore v2 Utilization", "vCPU Utilization", "Memory Usage Summary", "Memory Usage Details")
    for width, height in ((80, 24), (120, 40), (300, 80)):
        shown = text(dashboard, (width, height))
        places = [shown.index(panel) for panel in panels]
        assert places == sorted(places)
        assert not any(panel in shown for panel in ("Jobs:", "Findings", "Utilization of"))
    assert "NC 0 " in press(dashboard, "enter")
    assert "NC 0 " in press(dashboard, "x")
    assert "NC 0 " not in press(dashboard, "x")
    assert "Jobs:" in press(dashboard, "v")
    assert dashboard.settings.values_to_save()["layout"] == "full"


def test_a_key_unfolds_and_folds_all_jobs_of_both_lists(dashboard: Dashboard) -> None:
    for page in ("o", "w"):
        press(dashboard, page)
        assert str(FIRST_PID) in press(dashboard, "F")
        assert str(FIRST_PID) not in press(dashboard, "F")


def test_the_tree_opens_node_by_node_and_sums_up(dashboard: Dashboard) -> None:
    press(dashboard, "x")
    dashboard.opened = frozenset()
    shown = press(dashboard, "enter", "down", "right", "down", "enter")
    assert "NC 0  synthetic-0" in shown
    assert "synthetic/train_step.neff" in shown
    assert "10001" in shown
    scene = dashboard.render_context()
    assert scene is not None
    rows = visible_nodes(scene)
    for node in rows:
        inside = [row.device_bytes or 0 for row in rows if row.key.rpartition("/")[0] == node.key]
        assert not inside or node.device_bytes == sum(inside), node
    assert "train_step" not in press(dashboard, *["left"] * 5)
    press(dashboard, "x")
    assert "train_step" in press(dashboard, "x")
    shown = press(dashboard, "x")
    assert "train_step" not in shown
    assert "Memory Usage Details" not in shown
    assert "x: details" in shown


def test_enter_unfolds_a_job_shows_a_process_and_esc_comes_back(dashboard: Dashboard) -> None:
    assert " rank 0 " not in text(dashboard)
    assert f"{FIRST_PID} rank 0" in press(dashboard, "enter")
    assert f"Process {FIRST_PID + 1}" in press(dashboard, "down", "down", "enter")
    shown = press(dashboard, "escape")
    assert dashboard.page == "overview"
    assert f"{FIRST_PID} rank 0" in shown
    press(dashboard, "left")  # to its job
    assert dashboard.list.cursor == 0
    assert " rank 0 " not in press(dashboard, "left")
    assert " rank 0 " in press(dashboard, "right")
    idle = Dashboard(StillFeed([ScenarioHost("trn1.2xlarge", "idle").at(30.0)]), DashboardSettings(), UNICODE)
    assert "nobody holds a NeuronCore" in press(idle, "left", "enter")


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


def test_the_tree_of_all_processes_leads_to_details_and_signals(dashboard: Dashboard) -> None:
    assert "Process tree: 32 with Neuron devices, 0 parents and children" in press(dashboard, "Y")
    assert f"Send SIGTERM to PID {FIRST_PID + 2}?" in press(dashboard, "down", "down", "K", "enter")
    assert f"Process {FIRST_PID + 2}" in press(dashboard, "escape", "enter")
    assert "Process tree" in press(dashboard, "escape")
    assert "synthetic-31" in press(dashboard, "backslash", *f"{FIRST_PID + 31}", "enter", "escape", "enter")
    assert "32 processes, 1 job" in press(dashboard, "escape", "escape")


def test_filter_sort_tag_and_details(dashboard: Dashboard) -> None:
    assert "11 of 32 processes" in press(dashboard, "w", "/", *"tag~synthetic-1", "enter")
    press(dashboard, "s")
    assert dashboard.open_dialog is not None
    press(dashboard, "escape", ">")
    assert dashboard.settings.sort == "user"
    assert "11 tagged" in press(dashboard, "space"), "the job, as far as it passes"
    assert "9 tagged" in press(dashboard, "space", "space")
    shown = press(dashboard, "enter")
    assert "Process " in shown
    assert "Executions a second" in shown
    assert "11 of 32 processes" in press(dashboard, "escape")
    assert "32 processes, 1 job" in press(dashboard, "escape", "U")
    assert dashboard.tagged == frozenset()
    assert "unknown column 'colour'" in press(dashboard, "/", *"colour=red")
    assert "no column" not in press(dashboard, "backspace", "ctrl+u", "escape")


def test_a_job_is_one_row_until_it_is_opened(dashboard: Dashboard) -> None:
    shown = press(dashboard, "w")
    row = next(line for line in shown.splitlines() if "32 ranks" in line)
    assert row.startswith(" ▸32 ranks ")
    assert str(FIRST_PID) not in shown
    assert "Enter lists them" in shown
    assert "the filter passes" not in press(dashboard, "enter")
    assert f"{FIRST_PID}" in text(dashboard)
    assert f"Process {FIRST_PID + 1}" in press(dashboard, "down", "down", "enter")
    press(dashboard, "escape", "g", "enter")
    assert f"{FIRST_PID}" not in text(dashboard)
    assert f"{FIRST_PID}" in press(dashboard, "x")
    assert f"{FIRST_PID}" not in press(dashboard, "x")
    assert "a job has no environment" in press(dashboard, "E")


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


def test_a_signal_is_confirmed_and_synthetic_processes_get_none(dashboard: Dashboard) -> None:
    assert "and 24 more" in press(dashboard, "w", "K"), "the whole job"
    shown = press(dashboard, "escape", "x", "down", "K")
    assert "Send a signal" in shown
    assert "PID 4194305" in shown
    assert "Send SIGTERM to PID 4194305?" in press(dashboard, "enter")
    assert "synthetic: there is no such process" in press(dashboard, "down", "enter")


def test_a_signal_from_the_overview_is_for_the_selected_job_or_process(dashboard: Dashboard) -> None:
    shown = press(dashboard, "K", "enter")
    assert "Send SIGTERM to 32 processes?" in shown
    assert "and 24 more" in shown
    press(dashboard, "escape", "enter", "down", "down", "K")
    assert f"Send SIGTERM to PID {FIRST_PID + 1}?" in press(dashboard, "enter")


def test_read_only_sends_no_signals() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(page="processes"), UNICODE, is_read_only=True)
    assert "--read-only: no signals are sent" in press(dashboard, "f9")
    assert dashboard.open_dialog is None
