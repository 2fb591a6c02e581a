"""What keys do to the list of processes, without a terminal."""

from __future__ import annotations

from neurontools.text.units import short_bytes_text
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.pressed_keys import FIRST_PID, press, text
from tests.harness.still_feed import StillFeed, snapshots


def test_filter_sort_tag_and_details(dashboard: Dashboard) -> None:
    press(dashboard, "w", "slash")
    for character in "tag~synthetic-1":
        assert dashboard.press(character, character)
    assert "11 of 32 processes" in press(dashboard, "enter")
    press(dashboard, "s")
    assert dashboard.choices is not None
    press(dashboard, "escape", "greater_than_sign")
    assert dashboard.settings.sort == "user"
    assert "11 tagged" in press(dashboard, "space"), "the job, as far as it passes"
    assert "9 tagged" in press(dashboard, "space", "space")
    shown = press(dashboard, "enter")
    assert "Process " in shown
    assert "Executions a second" in shown
    assert "11 of 32 processes" in press(dashboard, "escape")
    assert "32 processes, 1 job" in press(dashboard, "escape", "U")
    assert dashboard.tagged == frozenset()


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
    assert "a job has no environment of its own" in press(dashboard, "E")


def test_of_a_job_what_passes_is_summed_up(dashboard: Dashboard) -> None:
    press(dashboard, "w", "slash")
    for character in "cores=0-3":
        dashboard.press(character, character)
    rows = press(dashboard, "enter").splitlines()
    job = next(line for line in rows if "4 ranks" in line)
    assert " 0-3 " in job
    one = next(line for line in rows if f" {FIRST_PID} " in line)
    assert one.split()[3] == "0"
    figures = dashboard.scene().figures.by_pid  # type: ignore[union-attr]
    memory = sum(figures[FIRST_PID + number].device_memory_bytes or 0 for number in range(4))
    assert f" {short_bytes_text(memory)} " in job
    assert "which is listed" in press(dashboard, "enter")


def test_a_wrong_filter_says_why(dashboard: Dashboard) -> None:
    press(dashboard, "slash")
    for character in "colour=red":
        dashboard.press(character, character)
    assert "no column 'colour'" in text(dashboard)
    assert press(dashboard, "backspace", "ctrl+u", "escape").count("no column") == 0


def test_the_cursor_stays_on_its_process_when_the_order_changes(dashboard: Dashboard) -> None:
    press(dashboard, "w", "x", "down", "down", "down")
    chosen = dashboard.selected_pid
    press(dashboard, "I")
    assert dashboard.selected_pid == chosen
    scene = dashboard.scene()
    assert scene is not None
    assert scene.cursor == 1 + 31 - 2


def test_a_signal_is_confirmed_and_synthetic_processes_get_none(dashboard: Dashboard) -> None:
    assert "and 24 more" in press(dashboard, "w", "K"), "the whole job"
    shown = press(dashboard, "escape", "x", "down", "K")
    assert "Send a signal" in shown
    assert "PID 4194305" in shown
    assert "Send SIGTERM to PID 4194305?" in press(dashboard, "enter")
    assert "synthetic: there is no such process" in press(dashboard, "down", "enter")


def test_a_signal_from_the_overview_is_for_the_selected_job_or_process(dashboard: Dashboard) -> None:
    press(dashboard, "K")
    shown = press(dashboard, "enter")
    assert "Send SIGTERM to 32 processes?" in shown
    assert "and 24 more" in shown
    press(dashboard, "escape", "enter", "down", "down", "K")
    assert f"Send SIGTERM to PID {FIRST_PID + 1}?" in press(dashboard, "enter")


def test_read_only_sends_no_signals() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), Settings(page="processes"), UNICODE, is_read_only=True)
    assert "--read-only: no signals are sent" in press(dashboard, "f9")
    assert dashboard.choices is None
