"""The setup: columns, order, theme, page, devices and thresholds as the reader chooses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.figures import DeviceFilter
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import THEMES, plain_text
from neurontools.views.drawing.render_context import OVERVIEW_PANELS
from neurontools.views.processes_page import process_rows
from tests.harness import pressed_keys
from tests.harness.dashboard_terminal import Terminal
from tests.harness.running_daemon import StartDaemon
from tests.harness.still_feed import StillFeed, snapshots

press = partial(pressed_keys.press, size=(160, 40))


@pytest.fixture
def dashboard() -> Dashboard:
    return Dashboard(StillFeed(snapshots()), DashboardSettings(page="processes"), UNICODE)


def choose(dashboard: Dashboard, text: str, *keys: str) -> None:
    """Moves to an option of the open dialog that begins so, or has this behind its mark, and presses keys."""
    assert dashboard.open_dialog is not None
    options = [option.lstrip("[(x )]12▲▼") for option in dashboard.open_dialog.dialog.options]
    target = next(number for number, option in enumerate(options) if option.startswith(text))
    press(dashboard, "home", *["down"] * target, *keys)


def titles(dashboard: Dashboard) -> list[str]:
    return next(line for line in press(dashboard).splitlines() if "TAG" in line).split()


def open_setup(dashboard: Dashboard, entry: str) -> None:
    press(dashboard, "O")
    choose(dashboard, entry, "enter")


def test_columns_are_shown_hidden_and_moved(dashboard: Dashboard) -> None:
    assert titles(dashboard)[:3] == ["PID▲", "USER", "TAG"]
    open_setup(dashboard, "columns")
    choose(dashboard, "USER", "space")
    choose(dashboard, "HELD", "space", *["<"] * 40, "escape", "escape")
    assert titles(dashboard)[:3] == ["HELD", "PID▲", "TAG"]
    assert titles(dashboard)[-1] == "COMMAND"
    assert dashboard.settings.columns[:3] == ("count", "pid", "tag")
    open_setup(dashboard, "columns")
    press(dashboard, "0", "escape", "escape")
    assert titles(dashboard)[:3] == ["PID▲", "USER", "TAG"]
    assert dashboard.settings.columns == ()
    dashboard.settings.columns = ("tag",)
    open_setup(dashboard, "columns")
    press(dashboard, "space", "escape", "escape")
    assert titles(dashboard) == ["TAG"], "the last one stays"
    dashboard.settings.columns = ("models", "host", "p50", "cores", "pid", "command")
    (line,) = [line for line in pressed_keys.text(dashboard, (50, 40)).splitlines() if "CORES" in line]
    assert line.split() == ["P50", "CORES", "PID▲", "COMMAND"], "those that have no room go by need"


def test_panels_of_the_overview_are_hidden_and_moved_and_kept(dashboard: Dashboard) -> None:
    press(dashboard, "o")
    open_setup(dashboard, "panels")
    choose(dashboard, "vcpus", "space")
    choose(dashboard, "jobs", "<")
    shown = press(dashboard, "escape", "escape", size=(160, 50))
    places = [
        shown.index(title) for title in ("Jobs: ", "NeuronCore v2 Utilization", "HBM of ", "Memory Usage Summary")
    ]
    assert places == sorted(places)
    assert "vCPU" not in shown
    assert dashboard.settings.values_to_save()["panels"] == ("jobs", "cores", "history", "memory")
    for name in OVERVIEW_PANELS:
        dashboard.settings.panels = (name,)
        assert dashboard.draw(80, 24).lines
    open_setup(dashboard, "panels")
    assert "vCPU" in press(dashboard, "0", "escape", "escape")


def test_rows_are_sorted_by_two_columns(dashboard: Dashboard) -> None:
    press(dashboard, "s")
    choose(dashboard, "TAG", "space")
    choose(dashboard, "HELD", "enter")
    assert dashboard.open_dialog is None
    settings = dashboard.settings
    assert (settings.sort, settings.then_sort, settings.is_then_descending) == ("count", "tag", False)
    press(dashboard, "x")

    def tags_shown() -> list[str]:
        scene = dashboard.render_context()
        assert scene is not None
        return [row.rank.process.tag for row in process_rows(scene) if row.rank is not None]

    tags = tags_shown()
    assert tags == sorted(tags)
    press(dashboard, "s")
    choose(dashboard, "TAG", "space")
    assert tags_shown() == sorted(tags, reverse=True)
    press(dashboard, "space", "escape")
    assert settings.then_sort == ""


def test_theme_page_and_thresholds(dashboard: Dashboard) -> None:
    themes: list[str] = []
    dashboard.shell.set_theme = themes.append
    open_setup(dashboard, "theme")
    assert dashboard.open_dialog is not None
    assert len(dashboard.open_dialog.dialog.options) == len(THEMES) + 1
    choose(dashboard, "mono", "enter")
    assert themes == ["mono"]
    for entry, value in (("page", "health"), ("idle", "below 25"), ("late", "after 300")):
        choose(dashboard, entry, "enter")
        choose(dashboard, value, "enter")
    assert dashboard.open_dialog.dialog.title == "Setup"
    press(dashboard, "escape")
    settings = dashboard.settings
    assert (settings.start_page, settings.idle_below_percent, settings.late_after_seconds) == ("health", 25.0, 300.0)
    assert Dashboard(StillFeed(snapshots()), settings, UNICODE).page == "health"


def test_thresholds_colour_the_list(dashboard: Dashboard) -> None:
    press(dashboard, "x")

    def styles() -> set[str]:
        rows = [line for line in dashboard.draw(160, 40).lines if "synthetic-" in plain_text(line)]
        return {style for line in rows for text, style in line if text.strip().endswith("%")}

    of_idle = {"warn", "held"}
    assert styles()
    assert not styles() & of_idle
    dashboard.settings.idle_below_percent = 100.0
    assert styles() & of_idle


def test_devices_are_hidden_and_shown(dashboard: Dashboard) -> None:
    for keys, told in (
        (("down", "space"), "15 of 16 devices"),
        (("o",), "1 of 16 devices"),
        (("space",), "1 of 16 devices"),  # the last one stays
        (("0",), ""),
    ):
        open_setup(dashboard, "devices")
        title, list_title, *_ = press(dashboard, *keys, "escape", "escape").splitlines()
        assert told in title
        assert ("of 16 devices" in title) == bool(told)
        assert told != "15 of 16 devices" or "30 processes" in list_title


def test_devices_that_the_command_line_leaves_out_are_not_offered() -> None:
    chosen = DeviceFilter(frozenset((2, 5)))
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(page="processes"), UNICODE, device_filter=chosen)
    open_setup(dashboard, "devices")
    assert dashboard.open_dialog is not None
    assert [option.split()[-1] for option in dashboard.open_dialog.dialog.options] == ["2", "5"]
    shown = press(dashboard, "space", "space", "down", "space", "escape", "escape")
    assert "1 of 16 devices" in shown.splitlines()[0]
    assert {row.process.device_indices for row in dashboard.render_context().figures.by_pid.values()} == {(2,)}  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_setup_in_a_terminal_is_there_again_next_time(
    start_daemon: StartDaemon, terminal: Callable[..., Terminal]
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady")
    top = terminal("--socket", daemon.socket, "--page", "processes")
    top.shows("Neuron Apps")
    top.press_until("O", "Setup")
    for key, words in (("\r", "Space show or hide"), ("j ", "[ ] USER"), ("\x1b", "page to begin with")):
        top.press(key, words)
    top.press("\x1b")
    top.until(lambda text: "Setup" not in text)
    top.press("q")
    assert top.ends() == 0
    again = terminal("--socket", daemon.socket, "--page", "processes")
    assert "USER" not in again.shows("CORES")
    again.press("q")
    assert again.ends() == 0
