"""Textual application of the dashboard, with timers, command palette, screenshots and recordings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, ClassVar

from rich.terminal_theme import SVG_EXPORT_THEME
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from neurontools.client.feed import LiveFeed
from neurontools.tui import keys
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.dashboard_widget import DashboardScreen, DashboardWidget
from neurontools.tui.settings import save_settings
from neurontools.tui.terminal import ExitSignals, TypedAhead, exit_on_signals
from neurontools.tui.textual_private import HandoverDriver, TerminalDriver, character_to_key, driver_class
from neurontools.util.errors import UserError
from neurontools.views.drawing.lines import THEMES

_HEARTBEAT_SECONDS = 1.0
_REPLAY_SECONDS = 0.2
_LONGEST_TICK_SECONDS = 1.5  # while snapshots come at least this often, no other timer wakes the event loop
_LIGHT_BACKGROUND = "#ffffff"
_NO_PALETTE = ("show_palette", "choose_tab")


class NeuronTop(App[None]):
    """Shows the dashboard of one host in a terminal. Starts the feed on mount and closes it on unmount."""

    CSS_PATH = "app.tcss"
    TITLE = "neuron-top"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        dashboard: Dashboard,
        theme_name: str,
        settings_file: Path | None = None,
        *,
        continues: bool = False,
        typed_ahead: TypedAhead | None = None,
    ) -> None:
        super().__init__(driver_class=driver_class(continues=continues), ansi_color=True)
        self.terminal_driver: TerminalDriver | None = None  # set by TerminalDriver; None with Textual's own driver
        self.dashboard = dashboard
        self.typed_ahead = typed_ahead or TypedAhead()
        self._has_next = typed_ahead is not None  # whether the page of many hosts opens after this app ends
        self.dashboard_widget = DashboardWidget(dashboard, theme_name, self.typed_ahead)
        self._settings_file = settings_file
        self.endings: ExitSignals | None = None
        self.attributes_before: list[Any] | None = None  # terminal attributes before the first frame
        self.on_takeover: Callable[[], object] = lambda: None  # callback when Textual takes over the screen
        self.early_keys = ""  # characters that the user typed before Textual started
        self._is_pending = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._exit_stack = ExitStack()
        shell = dashboard.shell
        shell.quit = self._quit
        shell.suspend = self.action_suspend_process
        shell.show_palette = self.action_command_palette
        shell.next_theme = self._next_theme
        shell.set_theme = self._choose_theme
        shell.save_screenshot = self._save_screenshot
        shell.toggle_recording = self._toggle_recording

    def get_default_screen(self) -> Screen[None]:
        return DashboardScreen(self.dashboard_widget)

    def on_load(self) -> None:
        """Suspends Textual's drawing, so that the first frame stays until the widget has drawn once."""
        self._exit_stack.enter_context(self.batch_update())
        self.dashboard_widget.when_drawn = self._draw_whole

    def _draw_whole(self) -> None:
        """Makes Textual draw the whole widget once. Afterwards the widget writes only changed cells."""
        self._exit_stack.close()
        self.dashboard_widget.refresh()
        self.dashboard_widget.call_after_refresh(self._start_painting)

    def _start_painting(self) -> None:
        driver = self.terminal_driver
        if driver is None:
            self.on_takeover()
            return
        self.dashboard_widget.is_behind = lambda: driver.is_behind
        if isinstance(driver, HandoverDriver):
            self.dashboard_widget.paint = driver.paint
            # Draws again, because Textual may have rendered lines before this point without writing them.
            self.dashboard_widget.refresh()

    def on_mount(self) -> None:
        self._event_loop, self._feed_context = asyncio.get_running_loop(), copy_context()
        self.dashboard.feed.start(self._announce)
        self._redraw_periodically()
        # Redraws all lines after Ctrl-Z and fg, because the screen is then empty.
        self.app_resume_signal.subscribe(self, lambda _app: self.dashboard_widget.redraw(whole=True))
        exit_on_signals(self, self.endings)
        early = [(character_to_key(character), character) for character in self.early_keys]
        self.typed_ahead.deliver(self.dashboard.press, early)

    def on_unmount(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self.dashboard.feed.close()

    def _announce(self) -> None:
        """Makes the event loop show the feed's new data or state. Called in the feed's thread.

        A callback of the loop takes less CPU time than a Textual message.
        """
        if not self._is_pending:
            self._is_pending = True
            with suppress(RuntimeError):  # the loop is closed, because neuron-top has ended
                self._event_loop.call_soon_threadsafe(self._show_news, context=self._feed_context)

    def _show_news(self) -> None:
        self._is_pending = False
        try:
            self.dashboard.feed.drain()
            self.dashboard.time.advance()
            self.dashboard_widget.redraw()
        except Exception as error:
            self.call_later(_raise, error)  # Textual then ends the application with this error
        if self.dashboard.feed.is_live:
            self._schedule_heartbeat(_LONGEST_TICK_SECONDS)

    def _schedule_heartbeat(self, seconds: float) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._event_loop.call_later(seconds, self._redraw_periodically)

    def _redraw_periodically(self) -> None:
        """Redraws the screen for a replay, an expired message, or the growing age of old data."""
        self.call_later(self._redraw_if_restless)
        self._schedule_heartbeat(_HEARTBEAT_SECONDS if self.dashboard.feed.is_live else _REPLAY_SECONDS)

    def _redraw_if_restless(self) -> None:
        if self.dashboard.time.advance() or self.dashboard.is_restless():
            self.dashboard_widget.redraw()

    def _quit(self) -> None:
        if self._settings_file is not None:
            save_settings(self._settings_file, self.dashboard.settings)
        if self._has_next:
            self.typed_ahead.begin()
        self.exit()

    def _next_theme(self) -> str:
        names = list(THEMES)
        name = names[(names.index(self.dashboard_widget.theme_name) + 1) % len(names)]
        self._choose_theme(name)
        return name

    def _choose_theme(self, name: str) -> None:
        self.dashboard.settings.theme = name
        self.set_theme_name(name if name in THEMES else "dark")

    def set_theme_name(self, name: str) -> None:
        self.dashboard_widget.theme_name = name
        self.dashboard_widget.redraw(whole=True)

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        """Returns the screen as an SVG picture. Textual draws a dark background, also for a light theme."""
        drawn = super().export_screenshot(title=title, simplify=simplify)
        is_dark = THEMES[self.dashboard_widget.theme_name].is_dark
        return drawn if is_dark else drawn.replace(SVG_EXPORT_THEME.background_color.hex, _LIGHT_BACKGROUND)

    def _save_screenshot(self) -> str:
        name = time.strftime("neuron-top-%Y%m%d-%H%M%S.svg")
        for folder in (Path.cwd(), Path.home()):
            if os.access(folder, os.W_OK):
                try:
                    path = self.save_screenshot(name, str(folder))
                except OSError as error:
                    return f"the picture can't be saved in {folder}: {error.strerror}"
                return f"picture saved: {path}"
        return "the picture can't be saved: neither this directory nor the home directory can be written"

    def _toggle_recording(self) -> str:
        feed = self.dashboard.feed
        if not isinstance(feed, LiveFeed):
            return "a recording can't be recorded"
        recorder = feed.recorder
        if recorder is not None:
            feed.recorder = None
            recorder.close()
            return (
                f"recording ended: {recorder.path}, {recorder.count} snapshots, {recorder.bytes_written / 1024:.0f} KB"
            )
        from neurontools.client.recording import RecordingWriter

        path = Path.cwd() / time.strftime("neuron-top-%Y%m%d-%H%M%S.neurec")
        try:
            feed.recorder = RecordingWriter(str(path))
        except UserError as error:
            return str(error)
        return f"recording to {path}; R ends it"

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        del screen
        for action in self.dashboard.keymap.actions:
            if action.name not in _NO_PALETTE:
                name = action.text[:1].upper() + action.text[1:]
                yield SystemCommand(name, f"{action.group}, key {action.shown}", self._command(action))
        for name in THEMES:
            yield SystemCommand(f"Theme {name}", "change the colours", lambda name=name: self._choose_theme(name))

    def _command(self, action: keys.KeyAction):  # type: ignore[no-untyped-def]
        def run() -> None:
            self.dashboard.act(action)
            self.dashboard_widget.redraw()

        return run


def _raise(error: Exception) -> None:
    raise error
