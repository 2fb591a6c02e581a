"""The widget that shows the dashboard: it draws by lines and refreshes only what has changed of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from neurontools.tui.dashboard import Dashboard
from neurontools.views.line import Line, width_of
from neurontools.views.style import THEMES

_WHEEL_LINES = 3


@cache
def _rich_style(theme: str, name: str) -> RichStyle:
    style = THEMES[theme].style(name)
    return RichStyle(
        color=style.color,
        bgcolor=style.background,
        bold=style.bold,
        dim=style.dim,
        reverse=style.reverse,
        underline=style.underline,
    )


class Board(Widget, can_focus=True):
    """The whole screen. `theme_name` is one of `neurontools.views.style.THEMES`."""

    def __init__(self, dashboard: Dashboard, theme_name: str) -> None:
        super().__init__()
        self.dashboard = dashboard
        self.theme_name = theme_name
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self._drawn_size = (0, 0)
        self.when_drawn: Callable[[], None] | None = None  # called once, after the first drawing

    def redraw(self, *, whole: bool = False) -> None:
        """Draw the dashboard anew and refresh the cells that differ."""
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        lines = self.dashboard.draw(width, height).lines
        if whole or self._drawn_size != (width, height) or len(lines) != len(self._lines):
            self._drawn_size = (width, height)
            self._strips = [self._strip(line, width) for line in lines]
            self._lines = lines
            self.refresh()
            when_drawn, self.when_drawn = self.when_drawn, None
            if when_drawn is not None:
                self.call_after_refresh(when_drawn)
            return
        regions = []
        for row, (line, before) in enumerate(zip(lines, self._lines, strict=True)):
            if line != before:
                self._strips[row] = self._strip(line, width)
                left, right = _changed(line, before, width)
                regions.append(Region(left, row, right - left, 1))
        self._lines = lines
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Hand a key to the dashboard."""
        if self.dashboard.press(event.key, event.character):
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
        return Strip([Segment(text, _rich_style(theme, style)) for text, style in line], width)


def _changed(line: Line, before: Line, width: int) -> tuple[int, int]:
    """The cells, from and to, in which two lines of the same width differ; to whole runs."""
    left = 0
    for run, old in zip(line, before, strict=False):
        if run != old:
            break
        left += width_of(run[0])
    right = width
    for run, old in zip(reversed(line), reversed(before), strict=False):
        if run != old:
            break
        right -= width_of(run[0])
    return (left, right) if right > left else (0, width)
