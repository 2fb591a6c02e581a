"""Page of many hosts in a terminal: its state, its keys, and the Textual application that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import USER, grouping_choices
from neurontools.tui.dashboard_widget import DashboardScreen, DashboardWidget
from neurontools.tui.keys import edited_text
from neurontools.tui.terminal import ExitSignals, TypedAhead, exit_on_signals
from neurontools.tui.textual_private import driver_class
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.lines import TextPage
from neurontools.views.fleet_hosts import HostRow, list_rows
from neurontools.views.fleet_page import SORTS, FleetContext, fleet_page, matches_filter

_BEAT_SECONDS = 1.0  # seconds between redraws, which update the ages of data
_SOON_SECONDS = 0.2  # seconds between redraws until all hosts have answered or failed


class FleetApp(App[str]):
    """Shows many hosts in a terminal. Its return value is the name of the host to open, or None."""

    CSS_PATH = "app.tcss"
    TITLE = "neuron-top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self, fleet: FleetDashboard, theme_name: str, typed_ahead: TypedAhead, endings: ExitSignals | None = None
    ) -> None:
        super().__init__(driver_class=driver_class(continues=False), ansi_color=True)
        self._endings = endings
        self._fleet = fleet
        self.typed_ahead = typed_ahead
        self._dashboard_widget = DashboardWidget(fleet, theme_name, typed_ahead)
        fleet.leave = self._leave
        fleet.suspend = self.action_suspend_process

    def get_default_screen(self) -> Screen[None]:
        return DashboardScreen(self._dashboard_widget)

    def on_mount(self) -> None:
        """Redraws each second, and more often until every host has answered or failed once."""
        self.set_interval(_BEAT_SECONDS, self._dashboard_widget.redraw)
        if not self._fleet.feed.is_settled:
            self._redraw_until_settled()
        self.app_resume_signal.subscribe(self, lambda _app: self._dashboard_widget.redraw(whole=True))
        exit_on_signals(self, self._endings)
        self.typed_ahead.deliver(self._fleet.press)

    def _leave(self, name: str | None) -> None:
        if name is not None:
            self.typed_ahead.begin()
        self.exit(name)

    def _redraw_until_settled(self) -> None:
        self._dashboard_widget.redraw()
        if not self._fleet.feed.is_settled:
            self.set_timer(_SOON_SECONDS, self._redraw_until_settled)


_MESSAGE_SECONDS = 8.0
_QUIT = ("q", "ctrl+c", "ctrl+q")
_HELP = ("question_mark", "f1")
_ALL_KEYS = (
    "arrows j k PgUp PgDn Home End: move; Enter: host, open group; s: order; b: group; /: filter; g: cells; q: quit"
)


class FleetDashboard:
    """State of the page of many hosts: selection, filter, order, and the last drawn screen.

    Calls `leave` when the user leaves the page, with the name of the host to open or None.
    """

    def __init__(
        self, feed: FleetFeed, glyphs: Glyphs, *, filter_text: str = "", group_by: str = "", message: str = ""
    ) -> None:
        self.feed = feed
        self.leave: Callable[[str | None], None] = lambda _name: None
        self.suspend: Callable[[], None] = lambda: None
        self._glyphs = glyphs
        self._sort = next(iter(SORTS))
        self._filter_text = filter_text
        self._is_filter_edited = False
        self._is_grid_shown = True
        self._chosen = ""  # key of the selected host or group, which the cursor follows when rows move
        self._top = 0
        self._page_rows = 1
        self._drawn = TextPage()
        self._rows: list[HostRow] = []
        self._group_by = group_by
        self._opened: set[str] = set()  # keys of open groups
        self._message = ("", 0.0)
        if message:
            self.show_message(message)

    def show_message(self, text: str) -> None:
        self._message = text, time.monotonic() + _MESSAGE_SECONDS

    def draw(self, width: int, height: int) -> TextPage:
        all_states = self.feed.states
        text = self._filter_text
        chosen = [state for state in all_states if matches_filter(state, text)]
        if self._group_by == USER:
            self.feed.request_users()
        self._rows = list_rows(chosen, SORTS[self._sort], self._group_by, self._opened)
        message, until = self._message
        now = time.monotonic()
        context = FleetContext(
            rows=self._rows,
            all_states=all_states,
            jobs=self.feed.jobs,
            models=self.feed.models,
            now_seconds=now,
            now_unix_seconds=time.time(),
            interval_seconds=self.feed.interval_seconds,
            sort=self._sort,
            group_by=self._group_by,
            filter_text=text,
            is_filter_edited=self._is_filter_edited,
            cursor=self._cursor,
            top=self._top,
            is_grid_shown=self._is_grid_shown,
            message=message if now < until else "",
            notes=self.feed.notes,
            glyphs=self._glyphs,
        )
        self._drawn = fleet_page(context, width, height)
        self._top, self._page_rows = self._drawn.list_top, max(1, self._drawn.list_height)
        return self._drawn

    def press(self, key: str, character: str | None = None) -> bool:
        if self._is_filter_edited and self._edit(key, character):
            return True
        steps = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -self._page_rows, "pagedown": self._page_rows}
        if key in _QUIT:
            self.leave(None)
        elif key == "ctrl+z":
            self.suspend()
        elif key in _HELP:
            self.show_message(_ALL_KEYS)
        elif key in steps:
            self._move(steps[key])
        elif key in ("home", "end"):
            self._move(-len(self._rows) if key == "home" else len(self._rows))
        elif key == "enter":
            self._enter()
        elif key == "s":
            names = list(SORTS)
            self._sort = names[(names.index(self._sort) + 1) % len(names)]
        elif key == "b":
            choices = ["", *grouping_choices(self.feed.states)]
            at = choices.index(self._group_by) if self._group_by in choices else 0
            self._group_by = choices[(at + 1) % len(choices)]
        elif key == "g":
            self._is_grid_shown = not self._is_grid_shown
        elif key == "slash":
            self._is_filter_edited = True
        elif key == "escape" and self._filter_text:
            self._filter_text = ""
        else:
            return False
        return True

    def click(self, column: int, row: int) -> bool:
        """Handles a mouse click: selects a row, opens the selected row, or presses a key of the key bar."""
        target = self._drawn.target_at(column, row)
        if target is None:
            return False
        if target.action == "key":
            return self.press(target.argument)
        if target.action == "row" and int(target.argument) < len(self._rows):
            key = self._rows[int(target.argument)].key
            if key == self._chosen:
                self._enter()
            self._chosen = key
            return True
        return False

    def grab(self, column: int, row: int) -> bool:
        """Returns False: the page has nothing to drag."""
        del column, row
        return False

    def drag(self, column: int, row: int) -> None:
        """Does nothing, as `grab` never starts a drag."""

    def scroll(self, lines: int) -> None:
        self._move(lines)

    @property
    def _cursor(self) -> int:
        """The row index of the selected host or group; 0 if it is no longer listed."""
        return next((at for at, row in enumerate(self._rows) if row.key == self._chosen), 0)

    def _move(self, steps: int) -> None:
        if self._rows:
            at = min(len(self._rows) - 1, max(0, self._cursor + steps))
            self._chosen = self._rows[at].key

    def _enter(self) -> None:
        """Unfolds or folds the selected group, or leaves the page to open the selected host."""
        if not self._rows:
            return
        row = self._rows[self._cursor]
        self._chosen = row.key
        if row.group is None:
            self.leave(row.key)
        else:
            self._opened ^= {row.key}

    def _edit(self, key: str, character: str | None) -> bool:
        """Handles a key while the user types the filter. Returns False if the key does not edit text."""
        if key == "enter":
            self._is_filter_edited = False
        elif key == "escape":
            self._filter_text, self._is_filter_edited = "", False
        else:
            edited = edited_text(self._filter_text, key, character)
            if edited is None:
                return False
            self._filter_text = edited
        return True
