"""What each key does, without a terminal."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.cli.top.options import PAGE_NAMES
from neurontools.history.feed import FeedStatus, Link
from neurontools.tui import keys
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings, load, save, settings_path
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.line import line_width, plain
from neurontools.views.pages import PAGES
from tests.harness.examples import examples
from tests.harness.model_parts import parts
from tests.harness.pressed_keys import HEIGHT, WIDTH, draw, press, text
from tests.harness.still_feed import StillFeed, snapshots


@pytest.mark.parametrize("key", sorted(keys.BY_KEY))
@pytest.mark.parametrize("page", PAGE_NAMES)
def test_every_key_is_taken_on_every_page(key: str, page: str) -> None:
    dashboard = Dashboard(StillFeed(snapshots()), Settings(page=page), UNICODE)
    draw(dashboard)
    assert dashboard.press(key)
    lines = draw(dashboard).lines
    assert len(lines) == HEIGHT
    assert {line_width(line) for line in lines} == {WIDTH}


def test_an_unknown_key_is_left_alone(dashboard: Dashboard) -> None:
    assert not dashboard.press("f12")


def test_no_key_is_given_twice() -> None:
    every = [key for action in keys.ACTIONS for key in action.keys]
    assert sorted(every) == sorted(set(every))


def test_a_tab_makes_everything_follow_one_process(dashboard: Dashboard) -> None:
    assert ">[2]:synthetic-0<" in press(dashboard, "x", "2")
    shown = text(dashboard)
    assert "ND 0" in shown
    assert "ND 1 " not in shown  # the tree has its device alone
    figures = dashboard.scene().figures.by_pid[dashboard.pid]  # type: ignore[union-attr,index]
    assert f"Avg: {figures.utilization_ratio:.2%}" in shown
    assert ">[3]:synthetic-1<" in press(dashboard, "d")
    assert ">[1]:all<" in press(dashboard, "a", "a")
    press(dashboard, "a")  # before the first comes the last
    assert dashboard.pid == snapshots()[-1].processes[-1].pid
    steady = Dashboard(StillFeed(snapshots(scenario="steady")), Settings(), UNICODE)
    assert "ND 1-15: not in use by this process" in press(steady, "2")


def test_events_and_health_follow_the_tab(dashboard: Dashboard) -> None:
    press(dashboard, "L")
    everything = press(dashboard, "e")
    events = re.compile(r"(\d+) events? since")
    count = int(events.findall(everything)[0])
    assert re.search(r"Health: \d+ of 16 devices unhealthy", everything)
    shown = press(dashboard, "2")  # holds NC 0, of ND 0
    pid = dashboard.pid
    assert re.search(rf"Health of the devices of PID {pid}: (1 of 1 devices unhealthy|1 device is healthy)", shown)
    of_tab = int(events.findall(shown)[0])
    assert 0 < of_tab < count
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
    shown = press(dashboard, "m")
    assert "Utilization of 32 NeuronCores over time" in shown
    press(dashboard, *["down"] * 5)
    shown = press(dashboard, "enter")
    assert dashboard.page == "history"
    assert (dashboard.device_index, dashboard.core_index) == (2, 5)
    assert "ND 2 NC 5 utilization" in shown


def test_the_pages_of_the_options_are_all_there_are() -> None:
    assert tuple(page.name for page in PAGES) == PAGE_NAMES
    assert {page.key for page in PAGES} <= set(keys.BY_KEY)


def test_the_history_follows_the_tab(dashboard: Dashboard) -> None:
    assert " all cores " in press(dashboard, "h")
    shown = press(dashboard, "2")
    assert f" PID {dashboard.pid} " in shown
    assert " all cores " not in shown


def test_pause_holds_the_screen_while_more_comes(dashboard: Dashboard) -> None:
    feed = StillFeed(snapshots()[:50])
    dashboard = Dashboard(feed, Settings(), UNICODE)
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
    shown = press(dashboard, "left_square_bracket")
    assert "PAST" in shown
    assert "1.0 s back" in shown
    assert "1 m 1 s back" in press(dashboard, "left_curly_bracket")
    assert "1.0 s back" in press(dashboard, "right_curly_bracket")
    row = next(number for number, line in enumerate(draw(dashboard).lines) if "back [" in plain(line))
    left = plain(draw(dashboard).lines[row]).index("[") + 1
    assert dashboard.click(left, row)
    assert "1 m 29 s back" in text(dashboard)
    assert "LIVE" in press(dashboard, "L")


def test_events_are_found_one_after_the_other(dashboard: Dashboard) -> None:
    times = sorted({moment.at_seconds for moment in dashboard.feed.timeline.moments if moment.events})
    assert len(times) > 3
    press(dashboard, "N")
    assert dashboard.time.at == times[-1]
    press(dashboard, "N")
    assert dashboard.time.at == times[-2]
    press(dashboard, "n")
    assert dashboard.time.at == times[-1]
    assert "no later event" in press(dashboard, "n")
    shown = press(dashboard, "L", "e")
    assert "corrected HBM ECC error" in shown
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
    dashboard = Dashboard(feed, Settings(), UNICODE)
    feed.status = FeedStatus(Link.LOST, "no monitor daemon at unix:/x", time.monotonic())
    shown = text(dashboard)
    assert "LOST, data" in shown
    assert "trying again: no monitor daemon at unix:/x" in shown
    assert dashboard.is_restless()


def test_clicks_choose_what_is_under_them(dashboard: Dashboard) -> None:
    rows = [plain(line) for line in draw(dashboard).lines]
    tabs = next(number for number, row in enumerate(rows) if row.startswith("Neuron Apps"))
    assert dashboard.click(rows[tabs].index("synthetic-2"), tabs)
    assert dashboard.pid == snapshots()[-1].processes[2].pid
    assert dashboard.click(rows[-1].index("Topology"), len(rows) - 1)
    assert dashboard.page == "topology"
    rows = [plain(line) for line in draw(dashboard).lines]
    row = next(number for number, line in enumerate(rows) if "ND9" in line)
    assert dashboard.click(rows[row].index("ND9"), row)
    assert dashboard.device_index == 9
    assert not dashboard.click(WIDTH - 1, 0)
    dashboard.scroll(3)


def test_help_lists_every_key(dashboard: Dashboard) -> None:
    listed = "\n".join(keys.help_lines())
    for action in keys.ACTIONS:
        assert action.shown in listed
        assert action.text in listed
    assert "Keys" in press(dashboard, "question_mark")
    press(dashboard, "pagedown", "escape")
    assert dashboard.choices is None


@settings(max_examples=examples(12), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(parts(model.Snapshot), st.sampled_from(PAGE_NAMES))
def test_whatever_a_recording_holds_something_is_drawn(snapshot: model.Snapshot, page: str) -> None:
    dashboard = Dashboard(StillFeed([snapshot]), Settings(page=page), UNICODE)
    for key in ("x", "d", "enter", "j", "n", "K"):
        dashboard.press(key)
        lines = draw(dashboard, 80, 24).lines
        assert len(lines) == 24
        assert {line_width(line) for line in lines} == {80}


def test_settings_are_kept_and_wrong_ones_told(tmp_path: Path) -> None:
    path = settings_path({"XDG_CONFIG_HOME": str(tmp_path)})
    assert load(path) == (Settings(), "")
    save(path, Settings(theme="light", window_seconds=300.0, show_flops=True))
    assert load(path) == (Settings(theme="light", window_seconds=300.0, show_flops=True), "")
    path.write_text('{"theme": 7, "sort": "util", "health": {"stuck_seconds": 5}}')
    kept, trouble = load(path)
    assert (kept.theme, kept.sort) == ("auto", "util")
    assert "theme must be a text; the default is used (and 1 more)" in trouble
    path.write_text('{"sort": "util", "health": {"stuck_seconds": 5}}')
    assert "the daemon judges" in load(path)[1]
    path.write_text("[")
    assert "can't be read" in load(path)[1]


def test_the_manual_page_tells_every_key() -> None:
    page = (Path(__file__).parents[2] / "man/neuron-top.1").read_text("utf-8").replace("\\-", "-").replace("\\e", "\\")
    told = re.findall(r'^\.It Ic "\\&(.*)"\n(.*)$', page, re.MULTILINE)
    assert [shown for shown, _ in told] == [action.shown for action in keys.ACTIONS]
    for (_, about), action in zip(told, keys.ACTIONS, strict=True):
        assert about.replace("\\(aq", "'").casefold() == f"{action.text}.".casefold()
