"""The setup: columns, order, theme, page, devices and thresholds as the reader chooses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings, load, save
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.line import plain
from neurontools.views.drawing.narrowing import Narrowing
from neurontools.views.drawing.style import THEMES
from neurontools.views.processes.rows import process_rows
from tests.harness.dashboard_terminal import Terminal
from tests.harness.running_daemon import StartDaemon
from tests.harness.still_feed import StillFeed, snapshots


@pytest.fixture
def dashboard() -> Dashboard:
    return Dashboard(StillFeed(snapshots()), Settings(page="processes"), UNICODE)


def shown(dashboard: Dashboard, width: int = 160) -> list[str]:
    return [plain(line) for line in dashboard.draw(width, 40).lines]


def press(dashboard: Dashboard, *pressed: str) -> list[str]:
    for key in pressed:
        assert dashboard.press(key, key if len(key) == 1 else None), key
        shown(dashboard)
    return shown(dashboard)


def choose(dashboard: Dashboard, text: str) -> None:
    """Move the cursor of the open dialog to an option that begins so, or has this behind its mark."""
    assert dashboard.choices is not None
    options = [option.lstrip("[(x )]12▲▼") for option in dashboard.choices.dialog.options]
    target = next(number for number, option in enumerate(options) if option.startswith(text))
    press(dashboard, "home", *["down"] * target)


def titles(dashboard: Dashboard) -> list[str]:
    return next(line for line in shown(dashboard) if "TAG" in line).split()


def open_setup(dashboard: Dashboard, entry: str) -> None:
    press(dashboard, "O")
    choose(dashboard, entry)
    press(dashboard, "enter")


def test_columns_are_shown_hidden_and_moved(dashboard: Dashboard) -> None:
    assert titles(dashboard)[:3] == ["PID▲", "USER", "TAG"]
    open_setup(dashboard, "columns")
    choose(dashboard, "USER")
    press(dashboard, "space")
    choose(dashboard, "HELD")
    press(dashboard, "space", *["less_than_sign"] * 40)
    press(dashboard, "escape", "escape")
    assert titles(dashboard)[:3] == ["HELD", "PID▲", "TAG"]
    assert titles(dashboard)[-1] == "COMMAND"
    assert dashboard.settings.columns[:3] == ("count", "pid", "tag")
    open_setup(dashboard, "columns")
    press(dashboard, "0", "escape", "escape")
    assert titles(dashboard)[:3] == ["PID▲", "USER", "TAG"]
    assert dashboard.settings.columns == ()


def test_the_last_column_stays(dashboard: Dashboard) -> None:
    dashboard.settings.columns = ("tag",)
    open_setup(dashboard, "columns")
    press(dashboard, "space", "escape", "escape")
    assert titles(dashboard) == ["TAG"]


def test_chosen_columns_that_have_no_room_go_by_need(dashboard: Dashboard) -> None:
    dashboard.settings.columns = ("models", "host", "p50", "cores", "pid", "command")
    (line,) = [line for line in shown(dashboard, 50) if "CORES" in line]
    assert line.split() == ["P50", "CORES", "PID▲", "COMMAND"]


def test_rows_are_sorted_by_two_columns(dashboard: Dashboard) -> None:
    press(dashboard, "s")
    choose(dashboard, "TAG")
    press(dashboard, "space")
    choose(dashboard, "HELD")
    press(dashboard, "enter")
    assert dashboard.choices is None
    settings = dashboard.settings
    assert (settings.sort, settings.then_sort, settings.is_then_descending) == ("count", "tag", False)
    press(dashboard, "x")

    def tags_shown() -> list[str]:
        shown_now = dashboard.scene()
        assert shown_now is not None
        return [row.rank.process.tag for row in process_rows(shown_now) if row.rank is not None]

    tags = tags_shown()
    assert tags == sorted(tags)
    press(dashboard, "s")
    choose(dashboard, "TAG")
    press(dashboard, "space")
    assert tags_shown() == sorted(tags, reverse=True)
    press(dashboard, "space", "escape")
    assert settings.then_sort == ""


def test_theme_page_and_thresholds(dashboard: Dashboard) -> None:
    themes: list[str] = []
    dashboard.shell.set_theme = themes.append
    open_setup(dashboard, "theme")
    choose(dashboard, "mono")
    press(dashboard, "enter")
    assert themes == ["mono"]
    for entry, value in (("page", "health"), ("idle", "below 25"), ("late", "after 300")):
        choose(dashboard, entry)
        press(dashboard, "enter")
        choose(dashboard, value)
        press(dashboard, "enter")
    assert dashboard.choices is not None
    assert dashboard.choices.dialog.title == "Setup"
    press(dashboard, "escape")
    settings = dashboard.settings
    assert (settings.start_page, settings.idle_below_percent, settings.late_after_seconds) == ("health", 25.0, 300.0)
    assert Dashboard(StillFeed(snapshots()), settings, UNICODE).page == "health"


def test_thresholds_colour_the_list(dashboard: Dashboard) -> None:
    press(dashboard, "x")

    def styles() -> set[str]:
        rows = [line for line in dashboard.draw(160, 40).lines if "synthetic-" in plain(line)]
        return {style for line in rows for text, style in line if text.strip().endswith("%")}

    of_idle = {"warn", "held"}
    assert styles()
    assert not styles() & of_idle
    dashboard.settings.idle_below_percent = 100.0
    assert styles() & of_idle


def test_devices_are_hidden_and_shown(dashboard: Dashboard) -> None:
    open_setup(dashboard, "devices")
    press(dashboard, "down", "space", "escape", "escape")
    assert "15 of 16 devices" in shown(dashboard)[0]
    assert "30 processes" in shown(dashboard)[1]
    open_setup(dashboard, "devices")
    press(dashboard, "o", "escape", "escape")
    assert "1 of 16 devices" in shown(dashboard)[0]
    open_setup(dashboard, "devices")
    press(dashboard, "space")  # the last one stays
    press(dashboard, "escape", "escape")
    assert "1 of 16 devices" in shown(dashboard)[0]
    open_setup(dashboard, "devices")
    press(dashboard, "0", "escape", "escape")
    assert "of 16 devices" not in shown(dashboard)[0]


def test_devices_that_the_command_line_leaves_out_are_not_offered() -> None:
    narrowing = Narrowing(frozenset((2, 5)))
    dashboard = Dashboard(StillFeed(snapshots()), Settings(page="processes"), UNICODE, narrowing=narrowing)
    open_setup(dashboard, "devices")
    assert dashboard.choices is not None
    assert [option.split()[-1] for option in dashboard.choices.dialog.options] == ["2", "5"]
    press(dashboard, "space", "space", "down", "space", "escape", "escape")
    assert "1 of 16 devices" in shown(dashboard)[0]
    assert {row.process.device_indices for row in dashboard.scene().figures.by_pid.values()} == {(2,)}  # type: ignore[union-attr]


def test_what_was_chosen_is_kept(dashboard: Dashboard, tmp_path: Path) -> None:
    settings = dashboard.settings
    settings.columns, settings.then_sort, settings.start_page = ("tag", "util"), "util", "topology"
    save(tmp_path / "s.json", settings)
    assert load(tmp_path / "s.json") == (settings, "")


def test_the_setup_in_a_terminal_is_there_again_next_time(
    start_daemon: StartDaemon, terminal: Callable[..., Terminal]
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady")
    top = terminal("--socket", daemon.socket, "--page", "processes")
    top.shows("Neuron Apps")
    while "Setup" not in top.screen.text:
        top.press("O")  # again, as what is typed while Textual begins may be lost
        top.read(1.0)
    top.press("\r")
    top.shows("Space show or hide")
    top.press("j")
    top.press(" ")
    top.shows("[ ] USER")
    top.press("\x1b")
    top.shows("page to begin with")
    top.press("\x1b")
    top.until(lambda text: "Setup" not in text)
    top.press("q")
    assert top.ends() == 0
    again = terminal("--socket", daemon.socket, "--page", "processes")
    text = again.until(lambda text: "CORES" in text)
    assert "USER" not in text
    again.press("q")
    assert again.ends() == 0


def test_every_theme_can_be_chosen(dashboard: Dashboard) -> None:
    open_setup(dashboard, "theme")
    assert dashboard.choices is not None
    assert len(dashboard.choices.dialog.options) == len(THEMES) + 1
