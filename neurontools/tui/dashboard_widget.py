"""Textual widget and screen that show a page, and functions that encode only the changed cells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Protocol

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from neurontools.tui.terminal import TypedAhead
from neurontools.tui.textual_private import forget_rendered_lines
from neurontools.util.terminal import escape_controls
from neurontools.views.drawing.lines import THEMES, Line, TextPage, run_widths

_LEAST_GAP = 6  # minimum cells between two spans; rewriting a smaller gap takes fewer bytes than skipping it
_BEGIN, _END = "\x1b[?2026h", "\x1b[0m\x1b[?2026l"


class StyleSequences(dict[str, str]):
    """The escape sequences that reset all attributes and set a style of a theme, by the name of the style."""

    def __init__(self, theme: str, color_system: ColorSystem | None) -> None:
        super().__init__()
        self._theme = theme
        self._color_system = color_system

    def __missing__(self, style: str) -> str:
        codes = rich_style(self._theme, style).render("|", color_system=self._color_system).partition("|")[0]
        self[style] = "\x1b[0;" + codes[2:] if codes else "\x1b[0m"
        return self[style]


_style_sequences = cache(StyleSequences)


def update(
    lines: Sequence[Line], before: Sequence[Line], theme: str, color_system: ColorSystem | None, width: int
) -> str:
    """Returns the escape sequences that change the screen from `before` to `lines`.

    `before` and `lines` have equally many lines, each of which is `width` cells wide.
    """
    out: list[str] = []
    current = ""
    sequences = _style_sequences(theme, color_system)
    for row, (line, old) in enumerate(zip(lines, before, strict=True), 1):
        if line is old or line == old:
            continue
        ends = _ends_of_runs(line)
        position = 0
        for left, right in _changed_spans(line, old, ends, width):
            out.append(f"\x1b[{row};{left + 1}H")
            position = bisect_right(ends, left, position)
            while True:
                text, style = line[position]
                start, end = ends[position - 1] if position else 0, ends[position]
                # Never cuts a styled text with wide characters, because it has fewer characters than terminal cells.
                part = text if end - start != len(text) else text[max(0, left - start) : right - start]
                state = sequences[style]
                if state != current:
                    out.append(state)
                    current = state
                out.append(part if part.isprintable() else escape_controls(part))
                if right <= end:
                    break
                position += 1
    return f"{_BEGIN}{''.join(out)}{_END}" if out else ""


def spans(line: Line, before: Line, width: int) -> list[tuple[int, int]]:
    """Returns the ranges of cells in which two lines differ, in ascending order. Joins ranges that are close."""
    return _changed_spans(line, before, _ends_of_runs(line), width)


def _ends_of_runs(line: Line) -> list[int]:
    """Returns the cell after each run of a line."""
    return list(accumulate(run_widths(line)))


def _changed_spans(line: Line, before: Line, ends: list[int], width: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    old_ends = _ends_of_runs(before)
    number = old_number = 0  # of the runs at `position`
    start = old_start = position = 0
    while position < width:
        run, old_run, end, old_end = line[number], before[old_number], ends[number], old_ends[old_number]
        if start == old_start and run == old_run:
            start = old_start = position = end
            number += 1
            old_number += 1
            continue
        (text, style), (old_text, old_style) = run, old_run
        stop = min(end, old_end)
        if start == old_start and text == old_text:
            left, right = position, stop
        elif len(text) != end - start or len(old_text) != old_end - old_start:
            # Redraws the rest of the line, because cells and characters do not match in text with wide characters.
            left, right = position, width
        else:
            left, right = position, stop
            if style == old_style:
                while left < right and text[left - start] == old_text[left - old_start]:
                    left += 1
                while right > left and text[right - start - 1] == old_text[right - old_start - 1]:
                    right -= 1
        if left < right:
            if found and left - found[-1][1] < _LEAST_GAP:
                found[-1] = (found[-1][0], right)
            else:
                found.append((left, right))
            stop = max(stop, right)
        if end <= stop:
            start = end
            number += 1
        if old_end <= stop:
            old_start = old_end
            old_number += 1
        position = stop
    return found


@cache
def rich_style(theme: str, name: str) -> Style:
    style = THEMES[theme].style(name)
    return Style(
        color=style.color,
        bgcolor=style.background,
        bold=style.bold,
        dim=style.dim,
        reverse=style.reverse,
        underline=style.underline,
    )


_WHEEL_LINES = 3
_LATE_SECONDS = 0.05  # seconds until the retry of a frame that was skipped because output was queued


class InteractivePage(Protocol):
    """Content of DashboardWidget: the dashboard of one host, or the page of many hosts."""

    def draw(self, width: int, height: int) -> TextPage:
        """Draws the whole screen as lines, with click targets."""

    def press(self, key: str, character: str | None = None) -> bool:
        """Handles a key. Returns False if the key has no effect in the current state."""

    def click(self, column: int, row: int) -> bool:
        """Handles a mouse click. Returns False if there is no click target at this cell."""

    def grab(self, column: int, row: int) -> bool:
        """Handles a pressed mouse button. Returns whether the page wants `drag` calls until its release."""

    def drag(self, column: int, row: int) -> None:
        """Handles a move of the mouse to a cell after `grab` returned True."""

    def scroll(self, lines: int) -> None:
        """Handles the mouse wheel. Negative `lines` scroll up."""


class DashboardWidget(Widget, can_focus=True):
    """Shows a page on the whole screen. `theme_name` is a key of `neurontools.views.drawing.lines.THEMES`."""

    def __init__(self, dashboard: InteractivePage, theme_name: str, typed_ahead: TypedAhead) -> None:
        super().__init__()
        self.dashboard = dashboard
        self._typed_ahead = typed_ahead
        self.theme_name = theme_name
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []  # rendered lines; None: not rendered yet
        self._drawn_size = (0, 0)
        self.when_drawn: Callable[[], None] | None = None  # callback after the first full draw
        self.is_behind: Callable[[], bool] = lambda: False  # callback: whether terminal output is queued
        self._is_redraw_pending = self._is_whole_pending = False
        self._is_dragging = self._has_dragged = False
        self.paint: Callable[[str], None] | None = None  # function that writes to the terminal; None: Textual writes

    def redraw(self, *, whole: bool = False) -> None:
        """Draws the page and writes the changed cells. If the terminal still has output queued, draws later."""
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        if self.is_behind():
            self._is_whole_pending |= whole
            if not self._is_redraw_pending:
                self._is_redraw_pending = True
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
        changed = [row for row, (line, old) in enumerate(zip(lines, before, strict=True)) if line != old]
        for row in changed:
            self._strips[row] = None
        if self.paint is not None and self.screen.is_active and not self.screen.is_modal:
            text = update(lines, before, self.theme_name, COLOR_SYSTEMS.get(self.app.console.color_system or ""), width)
            if text:
                self.paint(text)
                # Otherwise Textual would show its stale cached lines after the command palette or Ctrl-Z.
                forget_rendered_lines(self)
        elif changed:
            self.refresh(*(Region(0, row, width, 1) for row in changed))

    def _redraw_late(self) -> None:
        whole, self._is_redraw_pending, self._is_whole_pending = self._is_whole_pending, False, False
        self.redraw(whole=whole)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._strips):
            return Strip.blank(self.size.width)
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = self._strip(self._lines[y], self.size.width)
        return strip

    def on_resize(self) -> None:
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Passes a key to the page. After the user has left the page, stores the key for the next page."""
        if self._typed_ahead.is_collecting:
            self._typed_ahead.add(event.key, event.character)
            event.stop()
        elif self.dashboard.press(event.key, event.character):
            event.stop()
            event.prevent_default()
            self.redraw()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._is_dragging = self._has_dragged = self.dashboard.grab(event.x, event.y)
        if self._is_dragging:
            self.capture_mouse()
            self.redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._is_dragging:
            self.dashboard.drag(event.x, event.y)
            self.redraw()

    def on_mouse_up(self) -> None:
        if self._is_dragging:
            self._is_dragging = False
            self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        """Handles a click, except the one that Textual reports at the end of a drag."""
        if not self._has_dragged and self.dashboard.click(event.x, event.y):
            self.redraw()

    def on_mouse_scroll_up(self) -> None:
        self.dashboard.scroll(-_WHEEL_LINES)
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        self.dashboard.scroll(_WHEEL_LINES)
        self.redraw()

    def _strip(self, line: Line, width: int) -> Strip:
        theme = self.theme_name
        return Strip([Segment(text, rich_style(theme, style)) for text, style in line], width)


class DashboardScreen(Screen[None]):
    """Textual screen that contains only the DashboardWidget, which always has the focus."""

    AUTO_FOCUS = "DashboardWidget"

    def __init__(self, board: DashboardWidget) -> None:
        super().__init__()
        self._dashboard_widget = board

    def compose(self) -> ComposeResult:
        yield self._dashboard_widget

    def on_resize(self, event: events.Resize) -> None:
        """Ignores a size that the terminal no longer has.

        Textual's screen posts each new size to itself again, so two sizes in its queue would alternate without end.
        """
        if event.size != self.app.size:
            event.prevent_default()

    def on_key(self, event: events.Key) -> None:
        """Passes keys to the widget if they arrive before the widget has the focus."""
        self._dashboard_widget.on_key(event)
