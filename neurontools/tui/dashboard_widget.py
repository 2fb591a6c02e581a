"""Widget that shows the dashboard, and the screen that holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from neurontools.tui import painter
from neurontools.tui.painter import rich_style
from neurontools.tui.terminal import TypedAhead
from neurontools.views.drawing.lines import Line, TextPage

_WHEEL_LINES = 3
_LATE_SECONDS = 0.05  # after which a frame that a slow line had to do without is drawn


class InteractivePage(Protocol):
    """What a board shows: the dashboard of a host, or the page of many."""

    def draw(self, width: int, height: int) -> TextPage:
        """The whole screen."""

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does; whether it means anything."""

    def click(self, column: int, row: int) -> bool:
        """Do what a click at a cell does; whether it means anything."""

    def scroll(self, lines: int) -> None:
        """What the mouse wheel does."""


class DashboardWidget(Widget, can_focus=True):
    """The whole screen. `theme_name` is one of `neurontools.views.drawing.lines.THEMES`."""

    def __init__(self, dashboard: InteractivePage, theme_name: str, typed_ahead: TypedAhead) -> None:
        super().__init__()
        self.dashboard = dashboard
        self._typed_ahead = typed_ahead
        self.theme_name = theme_name
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []  # None: not made from its line yet
        self._drawn_size = (0, 0)
        self.when_drawn: Callable[[], None] | None = None  # called once, after the first drawing
        self.is_behind: Callable[[], bool] = lambda: False  # whether the terminal has too much to show already
        self._is_late = self._is_late_whole = False
        self.paint: Callable[[str], None] | None = None  # writes to the terminal; None: Textual draws

    def redraw(self, *, whole: bool = False) -> None:
        """Draw the dashboard anew and refresh the cells that differ."""
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        if self.is_behind():
            self._is_late_whole |= whole
            if not self._is_late:
                self._is_late = True
                self.set_timer(_LATE_SECONDS, self._redraw_late)
            return
        lines = self.dashboard.draw(width, height).lines
        if whole or self._drawn_size != (width, height) or len(lines) != len(self._lines):
            self._drawn_size = (width, height)
            self._strips = [None] * len(lines)
            self._lines = lines
            self.refresh()
            when_drawn, self.when_drawn = self.when_drawn, None
            if when_drawn is not None:
                self.call_after_refresh(when_drawn)
            return
        before, self._lines = self._lines, lines
        if self.paint is not None and self.screen.is_active and not self.screen.is_modal:
            for row, (line, old) in enumerate(zip(lines, before, strict=True)):
                if line != old:
                    self._strips[row] = None
            text = painter.update(lines, before, self.theme_name, self.app.console._color_system, width)  # noqa: SLF001
            if text:
                self.paint(text)
                # Whenever Textual draws the board again (a palette over it, Ctrl-Z), it must not take what it kept.
                self._styles_cache.clear()
            return
        regions = []
        for row, (line, old) in enumerate(zip(lines, before, strict=True)):
            if line != old:
                self._strips[row] = None
                regions.append(Region(0, row, width, 1))
        if regions:
            self.refresh(*regions)

    def _redraw_late(self) -> None:
        whole, self._is_late, self._is_late_whole = self._is_late_whole, False, False
        self.redraw(whole=whole)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        if y >= len(self._strips):
            return Strip.blank(self.size.width)
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = self._strip(self._lines[y], self.size.width)
        return strip

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Hand a key to the dashboard; when that has been left, it is the next one's."""
        if self._typed_ahead.is_kept:
            self._typed_ahead.keep(event.key, event.character)
            event.stop()
        elif self.dashboard.press(event.key, event.character):
            event.stop()
            event.prevent_default()
            self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Hand a click to the dashboard."""
        if self.dashboard.click(event.x, event.y):
            self.redraw()

    def on_mouse_scroll_up(self) -> None:
        """Scroll up."""
        self.dashboard.scroll(-_WHEEL_LINES)
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        """Scroll down."""
        self.dashboard.scroll(_WHEEL_LINES)
        self.redraw()

    def _strip(self, line: Line, width: int) -> Strip:
        theme = self.theme_name
        return Strip([Segment(text, rich_style(theme, style)) for text, style in line], width)


class DashboardScreen(Screen[None]):
    """Holds the board, which has the focus all the time."""

    AUTO_FOCUS = "DashboardWidget"

    def __init__(self, board: DashboardWidget) -> None:
        super().__init__()
        self._board = board

    def compose(self) -> ComposeResult:
        """The board."""
        yield self._board

    def on_key(self, event: events.Key) -> None:
        """Give the board what was typed before it had the focus; what it has had and does not know does nothing."""
        self._board.on_key(event)
