"""What each key and click does on the page of many hosts; knows nothing of Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import HostState
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Page
from neurontools.views.fleet.page import SORTS, FleetScene, fleet_page, passes

_MESSAGE_SECONDS = 8.0
_MOST_TYPED = 200
_QUIT = ("q", "ctrl+c", "ctrl+q")


class FleetBoard:
    """What is chosen of many hosts, and the screen drawn from it. `leave` ends it, with a host to look at or None."""

    def __init__(self, feed: FleetFeed, glyphs: Glyphs, *, filter_text: str = "", message: str = "") -> None:
        self.feed = feed
        self.leave: Callable[[str | None], None] = lambda _name: None
        self.suspend: Callable[[], None] = lambda: None
        self._glyphs = glyphs
        self._sort = next(iter(SORTS))
        self._filter_text = filter_text
        self._is_filter_edited = False
        self._is_grid_shown = True
        self._chosen = ""  # the name of the host under the cursor, which moves with it
        self._top = 0
        self._room = 1
        self._drawn = Page()
        self._states: list[HostState] = []
        self._message = ("", 0.0)
        if message:
            self.tell(message)

    def tell(self, text: str) -> None:
        """Show a line for some seconds."""
        self._message = text, time.monotonic() + _MESSAGE_SECONDS

    def draw(self, width: int, height: int) -> Page:
        """The whole screen, of the hosts as they are known now."""
        all_states = self.feed.states
        text = self._filter_text
        self._states = SORTS[self._sort]([state for state in all_states if passes(state, text)])
        message, until = self._message
        now = time.monotonic()
        scene = FleetScene(
            states=self._states,
            all_states=all_states,
            now_seconds=now,
            now_unix_seconds=time.time(),
            interval_seconds=self.feed.interval_seconds,
            sort=self._sort,
            filter_text=text,
            is_filter_edited=self._is_filter_edited,
            cursor=self._cursor,
            top=self._top,
            is_grid_shown=self._is_grid_shown,
            message=message if now < until else "",
            notes=self.feed.notes,
            glyphs=self._glyphs,
        )
        self._drawn = fleet_page(scene, width, height)
        self._top, self._room = self._drawn.list_top, max(1, self._drawn.list_height)
        return self._drawn

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does; whether it means anything."""
        if self._is_filter_edited and self._edit(key, character):
            return True
        steps = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -self._room, "pagedown": self._room}
        if key in _QUIT:
            self.leave(None)
        elif key == "ctrl+z":
            self.suspend()
        elif key in steps:
            self._move(steps[key])
        elif key in ("home", "end"):
            self._move(-len(self._states) if key == "home" else len(self._states))
        elif key == "enter":
            self._enter()
        elif key == "s":
            names = list(SORTS)
            self._sort = names[(names.index(self._sort) + 1) % len(names)]
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
        """Choose the host of a row, or look at it when it is chosen; a key of the bar is as if it were pressed."""
        target = self._drawn.target_at(column, row)
        if target is None:
            return False
        if target.action == "key":
            return self.press(target.argument)
        if target.action == "row" and int(target.argument) < len(self._states):
            name = self._states[int(target.argument)].place.name
            if name == self._chosen:
                self._enter()
            self._chosen = name
            return True
        return False

    def scroll(self, lines: int) -> None:
        """What the mouse wheel does."""
        self._move(lines)

    @property
    def _cursor(self) -> int:
        """Where the chosen host is in the list; the first one where it is not, or no longer."""
        return next((at for at, state in enumerate(self._states) if state.place.name == self._chosen), 0)

    def _move(self, steps: int) -> None:
        if self._states:
            at = min(len(self._states) - 1, max(0, self._cursor + steps))
            self._chosen = self._states[at].place.name

    def _enter(self) -> None:
        if self._states:
            self._chosen = self._states[self._cursor].place.name
            self.leave(self._chosen)

    def _edit(self, key: str, character: str | None) -> bool:
        """What a key does to the filter that is typed; False for one that moves or ends as always."""
        if key == "enter":
            self._is_filter_edited = False
        elif key == "escape":
            self._filter_text, self._is_filter_edited = "", False
        elif key in ("backspace", "ctrl+h"):
            self._filter_text = self._filter_text[:-1]
        elif key == "ctrl+u":
            self._filter_text = ""
        elif character is not None and character.isprintable() and len(self._filter_text) < _MOST_TYPED:
            self._filter_text += character
        else:
            return False
        return True
