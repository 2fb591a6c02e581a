"""State of the dashboard: selection, dialogs, messages, and the screen that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neurontools.client.feed import LiveFeed
from neurontools.tui.keys import KeyMap
from neurontools.views.drawing.glyphs import Dialog, draw_dialog
from neurontools.views.drawing.lines import TextPage, fit, printable
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.feed_view import CORRUPT_DATA_ERRORS, DEVICE_PAGES, JOB_PAGES, FeedView
from neurontools.views.screen import draw_screen

if TYPE_CHECKING:
    from neurontools.views.process_table import JobRow


MESSAGE_SECONDS = 6.0


def _do_nothing() -> None:
    pass


@dataclass(slots=True)
class Shell:
    """Functions of the Textual application that the dashboard calls."""

    quit: Callable[[], None] = _do_nothing
    suspend: Callable[[], None] = _do_nothing
    show_palette: Callable[[], None] = _do_nothing
    next_theme: Callable[[], str] = lambda: ""
    set_theme: Callable[[str], None] = lambda _name: None
    save_screenshot: Callable[[], str] = lambda: ""
    toggle_recording: Callable[[], str] = lambda: ""


@dataclass
class DashboardState(FeedView):
    """A feed view plus the user's input, the selection, and the last drawn screen."""

    shell: Shell = field(default_factory=Shell)
    edited_filter: str | None = None  # text of the filter while the user types it; else None
    edited_search: str | None = None  # text of the search while the user types it; else None
    search_start: str = ""  # key of the row that was selected when the search began
    keymap: KeyMap = field(default_factory=KeyMap)
    tagged: frozenset[int] = frozenset()
    details_opened_from: str = ""  # page to show after the user closes the details
    open_dialog: OpenDialog | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._message = ("", 0.0)
        self._shown_recording_error = ""
        self.drawn = TextPage()

    @property
    def selected_pid(self) -> int | None:
        """The PID of the selected row on the process list; None if the row is a job."""
        key = self.selected_rows.get("processes", "")
        return int(key) if key.isdecimal() else None

    @property
    def message(self) -> str:
        """The current message; "" after it has expired."""
        text, until = self._message
        return text if time.monotonic() < until else ""

    def forget_message(self) -> None:
        self._message = ("", 0.0)

    def show_message(self, text: str) -> None:
        self._message = (text, time.monotonic() + MESSAGE_SECONDS)

    def is_restless(self) -> bool:
        """Returns whether the screen must be redrawn without new data: a message expired, or the data gets older."""
        if self._message[0] and not self.message:
            self.forget_message()
            return True
        return self.time.is_restless()

    @property
    def current_filter(self) -> str:
        """The filter that the user is typing, else the active filter."""
        return self.filter_text if self.edited_filter is None else self.edited_filter

    @property
    def current_search(self) -> str:
        """The search that the user is typing, else the active search."""
        return self.search_text if self.edited_search is None else self.edited_search

    def render_context(self) -> RenderContext | None:
        """Returns the data from which a page is drawn; None before the first snapshot."""
        self._show_recording_error()
        context = super().render_context()
        if context is not None:
            context.key_texts, context.tagged = self.keymap.changed, self.tagged
            context.message = self._prompt(context.match_text)
        return context

    def draw(self, width: int, height: int) -> TextPage:
        """Draws the whole screen. Each line is `width` terminal cells wide."""
        try:
            context = self.render_context()
            page = draw_screen(context, width, height) if context is not None else None
        except CORRUPT_DATA_ERRORS as error:
            page = self._notice(f"this moment can't be drawn: {type(error).__name__}: {error}", width, height)
        if page is None:
            page = self._notice(self.feed.status.text or "waiting for the first snapshot", width, height)
        else:
            where = self.list
            where.top, where.count = page.list_top, page.list_count
            where.height = max(1, page.list_height)
            where.cursor = min(where.cursor, max(0, where.count - 1)) if where.count else where.cursor
        if self.open_dialog is not None:
            page = draw_dialog(page, self.open_dialog.dialog, self.glyphs, width, height)
        self.drawn = page
        return page

    def _notice(self, text: str, width: int, height: int) -> TextPage:
        page = TextPage(
            [fit(((" neuron-top", "title"),), width, "title"), fit(((f" {printable(text)}", "strong"),), width)]
        )
        page.lines = [*page.lines, *[fit((), width)] * height][:height]
        return page

    def _prompt(self, found_text: str) -> str:
        if self.edited_filter is not None:
            return f"filter: {self.edited_filter}_   (Enter keep, Esc clear; words, or column<value: user=root util<5)"
        if self.edited_search is not None:
            found = f"{found_text}; " if found_text else ""
            return f"search: {self.edited_search}_   ({found}Enter keep, then n and N go on; Esc clear)"
        return self.message

    def _show_recording_error(self) -> None:
        """Shows an error of the replayed recording as a message once. The title bar continues to show the error."""
        text = "" if self.feed.is_live else self.feed.status.text
        if text and text != self._shown_recording_error:
            self._shown_recording_error = text
            self.show_message(text)

    def recording_name(self) -> str:
        feed = self.feed
        if not isinstance(feed, LiveFeed):
            return ""
        if feed.recording_error:
            self.show_message(feed.recording_error)
            feed.recording_error = ""
        return feed.recorder.path.rpartition("/")[2] if feed.recorder is not None else ""

    def selected_job_row(self) -> JobRow | None:
        context = self.render_context()
        rows = self.rows(context) if context is not None else None
        return rows[min(self.list.cursor, len(rows) - 1)] if rows else None

    def pids_of_row(self) -> tuple[int, ...]:
        row = self.selected_job_row()
        return row.pids if row is not None else ()

    def selected_key(self) -> str:
        """Returns the key that identifies the selected row; "" if the list is empty."""
        from neurontools.views.screen import list_entries

        context = self.render_context()
        rows = list_entries(context) if context is not None else []
        return rows[min(self.list.cursor, len(rows) - 1)].key if rows else ""

    def to_match(self, step: int) -> bool:
        """Moves the cursor to a row that matches the search. Returns False if no row matches.

        `step` 1 finds the next match, -1 the previous, 0 the first from the cursor on. Wraps around at the end of the
        list, and unfolds the jobs and nodes around the match.
        """
        from neurontools.views.screen import list_entries, matching_rows

        context, key = self.render_context(), self.selected_key()
        rows = list_entries(context, every=True) if context is not None else []
        found = matching_rows(context, rows) if context is not None else []
        if not found:
            return False
        here = next((position for position, row in enumerate(rows) if row.key == key), 0)
        if step < 0:
            target = next((position for position in reversed(found) if position < here), found[-1])
        else:
            target = next((position for position in found if position >= here + step), found[0])
        if self.is_tree_shown and self.page == "overview":
            self.opened |= frozenset(rows[target].within)
        else:
            self.unfolded |= frozenset(rows[target].within)
        self.go_to(rows[target].key)
        return True

    def go_to(self, key: str) -> None:
        """Selects the row with this key if the list shows that row."""
        from neurontools.views.screen import list_entries

        context = self.render_context()
        keys = [row.key for row in list_entries(context)] if context is not None else []
        if key in keys:
            self.list.count = len(keys)
            self.move_to(keys.index(key))

    def show_page(self, name: str) -> None:
        """Shows the page with this name, and closes the details."""
        self.page = name
        self.details_opened_from = ""
        self.settings.page = name
        self.close_details()

    def close_details(self) -> None:
        self.details_pid, self.is_context_shown, self.is_time_shown = None, False, False

    def move_to(self, position: int) -> None:
        """Moves the cursor of the page's list to the row at `position`, or the nearest existing row."""
        where = self.list
        context = self.render_context() if self.page in JOB_PAGES else None
        keys = self.row_keys(context) if context is not None else None
        count = where.count if keys is None else len(keys)
        where.cursor = min(max(0, position), max(0, count - 1))
        if keys:
            self.selected_rows[self.page] = keys[where.cursor]
        elif self.page in DEVICE_PAGES:
            self.device_index = where.cursor


@dataclass(slots=True)
class OpenDialog:
    """A dialog, and callbacks that run when the user picks an option.

    `chosen` runs for Enter and may return the next dialog. `more` maps other keys to callbacks for the option under the
    cursor. `back` runs for Esc and returns the previous dialog.
    """

    dialog: Dialog
    chosen: Callable[[int], OpenDialog | None] | None = None
    more: Mapping[str, Callable[[int], OpenDialog | None]] = field(default_factory=dict)
    back: Callable[[], OpenDialog | None] | None = None

    def with_back(self, back: Callable[[], OpenDialog | None] | None) -> OpenDialog:
        """Sets the callback for Esc, and returns this dialog."""
        self.back = back
        return self

    def move(self, lines: int) -> None:
        """Moves the cursor by `lines` options. In a dialog without options, scrolls the text."""
        dialog = self.dialog
        if dialog.options:
            self.move_to(min(max(0, dialog.cursor + lines), len(dialog.options) - 1))
        else:
            self.dialog = replace(dialog, top=min(max(0, dialog.top + lines), max(0, len(dialog.text) - 1)))

    def move_to(self, option: int) -> None:
        self.dialog = replace(self.dialog, cursor=option)

    def press(self, key: str) -> OpenDialog | None:
        """Handles a key; ignores unknown keys. Returns the dialog that is open next, or None."""
        if key in self.more:
            return self.more[key](self.dialog.cursor)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -999, "end": 999}
        if key in moves:
            self.move(moves[key])
        elif key == "enter" and self.dialog.options:
            return None if self.chosen is None else self.chosen(self.dialog.cursor)
        elif key in ("escape", "q", "question_mark", "f1", "enter"):
            return None if self.back is None else self.back()
        return self
