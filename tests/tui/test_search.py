"""Searching the list of each page."""

from __future__ import annotations

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.line import plain
from tests.harness.pressed_keys import FIRST_PID, draw, press, text
from tests.harness.still_feed import StillFeed, snapshots

PIDS = [process.pid for process in snapshots()[-1].processes if process.tag == "synthetic-2"]


def typed(dashboard: Dashboard, words: str) -> str:
    """The screen after a search was begun and this was typed."""
    press(dashboard, "backslash")
    for character in words:
        assert dashboard.press(character, character)
        draw(dashboard)
    return text(dashboard)


def selected(dashboard: Dashboard) -> str:
    """The text of the selected row of the list, which is the last of those that are lit."""
    *_, line = [line for line in draw(dashboard).lines if any("+selected" in style for _, style in line)]
    return plain(line)


def on(page: str, scenario: str = "ecc-burst") -> Dashboard:
    dashboard = Dashboard(StillFeed(snapshots(scenario=scenario)), Settings(page=page), UNICODE)
    draw(dashboard)
    return dashboard


def test_a_search_keeps_the_list_and_goes_to_matches_in_jobs_that_are_folded(dashboard: Dashboard) -> None:
    press(dashboard, "w")
    shown = typed(dashboard, "tag~c-2")
    assert "32 processes, 1 job  search: tag~c-2, match 1 of 11" in shown
    assert dashboard.selected_pid == PIDS[0]
    assert "match 2 of 11" in press(dashboard, "enter", "n")
    assert dashboard.selected_pid not in (None, PIDS[0])
    assert "match 11 of 11" in press(dashboard, "N", "N"), "round the end"
    press(dashboard, "n")
    assert dashboard.selected_pid == PIDS[0]
    rows = {plain(line): line for line in draw(dashboard).lines if "synthetic-" in plain(line)}
    assert {"+found" in style for row, line in rows.items() for _, style in line if f" {PIDS[0]} " in row} == {True}
    assert {"+found" in style for row, line in rows.items() for _, style in line if f" {FIRST_PID} " in row} == {False}
    assert "search" not in press(dashboard, "escape").splitlines()[1]
    assert dashboard.selected_pid == PIDS[0]


def test_a_search_that_is_given_up_goes_back_and_one_that_finds_nothing_says_so(dashboard: Dashboard) -> None:
    press(dashboard, "w", "x", "down")
    assert "search: nobody, no match" in typed(dashboard, "nobody")
    assert "nothing is found: nobody" in press(dashboard, "enter", "n")
    assert dashboard.selected_pid == FIRST_PID
    press(dashboard, "ctrl+f", "x", "escape")
    assert dashboard.search_text == ""


def test_what_no_filter_understands_is_looked_for_as_words_and_told(dashboard: Dashboard) -> None:
    press(dashboard, "w")
    assert "no column 'colour'" in typed(dashboard, "colour=red")


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
    assert "match 1 of " in typed(dashboard, words)
    assert row in selected(dashboard)
    press(dashboard, "enter")
    assert "search: " in press(dashboard, "n")
    assert row in selected(dashboard)


@pytest.mark.parametrize("page", ["topology", "history"])
def test_devices_are_found_by_name_address_trouble_and_processes(page: str) -> None:
    dashboard = on(page)
    device = snapshots()[-1].devices[9]
    assert device.bdf is not None
    for words, index in ((device.bdf, 9), ("tag=synthetic-8", 4), ("nd 3", 3)):
        typed(dashboard, words)
        assert dashboard.device_index == index, words
        press(dashboard, "escape")
    typed(dashboard, "uncorrected")
    health = snapshots()[-1].health
    assert health is not None
    wrong = {index for each in health.findings if "uncorrected" in each.reason for index in each.device_indices}
    assert dashboard.device_index in wrong - {3}


def test_models_are_found_in_a_tree_that_is_not_open() -> None:
    dashboard = on("overview")
    press(dashboard, "x")
    dashboard.opened = frozenset()
    assert "match 1 of 32" in typed(dashboard, "train_step")
    assert "train_step" in selected(dashboard)
    press(dashboard, "enter", "n")
    assert dashboard.opened == {f"nd0{core}" for core in ("", "/nc0", "/nc1")}


def test_each_list_has_a_search_of_its_own(dashboard: Dashboard) -> None:
    press(dashboard, "m")
    typed(dashboard, "nc7")
    press(dashboard, "enter")
    shown = press(dashboard, "w")
    assert "search" not in shown
    press(dashboard, "N")
    assert dashboard.time.at is not None, "where nothing is searched, events are gone to"
    press(dashboard, "m", "n")
    assert " NC 7 " in selected(dashboard)
    press(dashboard, "escape")
    assert dashboard.search_text == ""
