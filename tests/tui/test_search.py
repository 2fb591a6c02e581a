"""Searching the list of each page."""

from __future__ import annotations

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import plain_text
from tests.harness.pressed_keys import FIRST_PID, draw, press
from tests.harness.still_feed import StillFeed, snapshots

PIDS = [process.pid for process in snapshots()[-1].processes if process.tag == "synthetic-2"]


def search(dashboard: Dashboard, words: str) -> str:
    """The screen after a search was begun and this was typed."""
    return press(dashboard, "\\", *words)


def selected(dashboard: Dashboard) -> str:
    """The text of the selected row of the list, which is the last of those that are lit."""
    *_, line = [line for line in draw(dashboard).lines if any("+selected" in style for _, style in line)]
    return plain_text(line)


def on(page: str) -> Dashboard:
    return Dashboard(StillFeed(snapshots()), DashboardSettings(page=page), UNICODE)


def test_a_search_keeps_the_list_and_goes_to_matches_in_jobs_that_are_folded(dashboard: Dashboard) -> None:
    press(dashboard, "w")
    shown = search(dashboard, "tag~c-2")
    assert "32 processes, 1 job  search: tag~c-2, match 1 of 11" in shown
    assert dashboard.selected_pid == PIDS[0]
    assert "match 2 of 11" in press(dashboard, "enter", "n")
    assert dashboard.selected_pid not in (None, PIDS[0])
    assert "match 11 of 11" in press(dashboard, "N", "N"), "round the end"
    press(dashboard, "n")
    assert dashboard.selected_pid == PIDS[0]
    rows = {plain_text(line): line for line in draw(dashboard).lines if "synthetic-" in plain_text(line)}
    for pid, is_found in ((PIDS[0], True), (FIRST_PID, False)):
        styles = [style for row, line in rows.items() for _, style in line[1:-1] if f" {pid} " in row]
        assert {"+found" in style for style in styles} == {is_found}
    assert "search" not in press(dashboard, "escape").splitlines()[1]
    assert dashboard.selected_pid == PIDS[0]


def test_a_search_that_is_given_up_goes_back_and_one_that_finds_nothing_says_so(dashboard: Dashboard) -> None:
    press(dashboard, "w", "x", "down")
    assert "search: nobody, no match" in search(dashboard, "nobody")
    assert "nothing matches nobody" in press(dashboard, "enter", "n")
    assert dashboard.selected_pid == FIRST_PID
    press(dashboard, "ctrl+f", "x", "escape")
    assert dashboard.search_text == ""
    assert "unknown column 'colour'" in search(dashboard, "colour=red"), "looked for as words"


@pytest.mark.parametrize(
    ("page", "words", "row"),
    [
        ("overview", "c-11", f"{FIRST_PID + 11} rank 11"),
        ("overview", "cores=31", f"{FIRST_PID + 31} rank 31"),
        ("heatmap", "nc7", " NC 7 "),
        ("heatmap", "nc 17", " NC 17 "),
        ("heatmap", "tag=synthetic-7", " NC 7 "),
        ("health", "critical ecc", "HBM ECC"),
    ],
)
def test_every_list_is_searched(page: str, words: str, row: str) -> None:
    dashboard = on(page)
    assert "match 1 of " in search(dashboard, words)
    assert row in selected(dashboard)
    assert "search: " in press(dashboard, "enter", "n")
    assert row in selected(dashboard)


@pytest.mark.parametrize("page", ["topology", "history"])
def test_devices_are_found_by_name_address_trouble_and_processes(page: str) -> None:
    dashboard = on(page)
    device = snapshots()[-1].devices[9]
    assert device.bdf is not None
    for words, index in ((device.bdf, 9), ("tag=synthetic-8", 4), ("nd 3", 3)):
        search(dashboard, words)
        assert dashboard.device_index == index, words
        press(dashboard, "escape")
    search(dashboard, "uncorrected")
    health = snapshots()[-1].health
    assert health is not None
    wrong = {index for each in health.findings if "uncorrected" in each.reason for index in each.device_indices}
    assert dashboard.device_index in wrong - {3}


def test_models_are_found_in_a_tree_that_is_not_open(dashboard: Dashboard) -> None:
    press(dashboard, "x")
    dashboard.opened = frozenset()
    assert "match 1 of 32" in search(dashboard, "train_step")
    assert "train_step" in selected(dashboard)
    press(dashboard, "enter", "n")
    assert dashboard.opened == {f"nd0{core}" for core in ("", "/nc0", "/nc1")}


def test_each_list_has_a_search_of_its_own(dashboard: Dashboard) -> None:
    press(dashboard, "m", "\\", *"nc7", "enter")
    assert "search" not in press(dashboard, "w")
    press(dashboard, "N")
    assert dashboard.time.at is not None, "where nothing is searched, events are gone to"
    press(dashboard, "m", "n")
    assert " NC 7 " in selected(dashboard)
    press(dashboard, "escape")
    assert dashboard.search_text == ""
    assert "match 8 of 32" in search(dashboard, "nc"), "from the cursor on"
    assert "match 9 of 32" in press(dashboard, "enter", "n")
