"""What the dashboard shows: everything that was chosen, and the screen drawn from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neurontools.client.feed import Feed, LiveFeed
from neurontools.tui.auxiliary_data import AuxiliaryData
from neurontools.tui.keys import KeyMap
from neurontools.tui.settings import DashboardSettings
from neurontools.tui.time_cursor import TimeCursor
from neurontools.views.drawing.figures import DeviceFilter, Figures
from neurontools.views.drawing.glyphs import Dialog, Glyphs, draw_dialog
from neurontools.views.drawing.lines import TextPage, fit, printable
from neurontools.views.drawing.render_context import DisplayThresholds, RenderContext
from neurontools.views.overview_page import job_rows
from neurontools.views.processes_page import process_rows
from neurontools.views.screen import draw_screen, page_named

if TYPE_CHECKING:
    from neurontools.client.events import HostEvent
    from neurontools.model import Snapshot
    from neurontools.views.process_table import JobRow


MESSAGE_SECONDS = 6.0
# A recording may hold anything: one moment that makes no sense must not take the others with it.
SENSELESS = (ArithmeticError, LookupError, ValueError, TypeError, OSError)
_DEVICE_PAGES = ("topology", "history")
_JOB_PAGES = ("overview", "processes")
_VERDICT_PAGES = ("health", "topology")
_EVENT_PAGES = ("health", "history", "heatmap", "processes")


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Shell:
    """What the dashboard asks of the program around it."""

    quit: Callable[[], None] = _nothing
    suspend: Callable[[], None] = _nothing
    show_palette: Callable[[], None] = _nothing
    next_theme: Callable[[], str] = lambda: ""
    set_theme: Callable[[str], None] = lambda _name: None
    save_screenshot: Callable[[], str] = lambda: ""
    toggle_recording: Callable[[], str] = lambda: ""


@dataclass(slots=True)
class ListState:
    """Where a page's list stands."""

    cursor: int = 0
    top: int = 0
    height: int = 1
    count: int = 0


@dataclass
class DashboardState:
    """Everything chosen on the screen, and the screen as drawn."""

    feed: Feed
    settings: DashboardSettings
    glyphs: Glyphs
    is_read_only: bool = False
    shell: Shell = field(default_factory=Shell)
    pid: int | None = None
    is_tree_shown: bool = False
    opened: frozenset[str] = frozenset()
    unfolded: frozenset[str] = frozenset()
    filter_text: str = ""
    edited_filter: str | None = None  # while it is being typed
    searches: dict[str, str] = field(default_factory=dict)  # what is looked for, by list
    edited_search: str | None = None  # while it is being typed
    search_start: str = ""  # the row that was selected when a search began
    keymap: KeyMap = field(default_factory=KeyMap)
    tagged: frozenset[int] = frozenset()
    selected_rows: dict[str, str] = field(default_factory=dict)  # of jobs and processes, by page
    details_pid: int | None = None
    details_opened_from: str = ""  # the page to go back to from details that were opened on another
    are_surroundings_shown: bool = False  # in the details, in place of the plots
    is_time_shown: bool = False  # where the time of a process goes, in place of its details
    device_index: int = 0
    core_index: int | None = None
    open_dialog: OpenDialog | None = None  # an open dialog
    narrowing: DeviceFilter = DeviceFilter()
    hidden_devices: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.time = TimeCursor(self.feed)
        self.beside = AuxiliaryData(self.feed)
        self.time.interval_seconds = self.feed.interval_seconds
        self.page = page_named(self.settings.first_page).name
        self.lists: dict[str, ListState] = {}
        self._figures: Figures | None = None
        self._shown: Snapshot | None = None
        self._message = ("", 0.0)
        self._told_of_source = ""
        self.drawn = TextPage()

    @property
    def list(self) -> ListState:
        """Where the list of the current page stands."""
        return self.lists.setdefault(self._list_name, ListState())

    @property
    def _list_name(self) -> str:
        return "surroundings" if self.is_surroundings_list else self.page

    @property
    def search_text(self) -> str:
        """What is looked for in the list of the current page."""
        return self.searches.get(self._list_name, "")

    @search_text.setter
    def search_text(self, text: str) -> None:
        self.searches[self._list_name] = text

    @property
    def selected_pid(self) -> int | None:
        """The selected row of the process list; None while that is a job."""
        key = self.selected_rows.get("processes", "")
        return int(key) if key.isdecimal() else None

    @property
    def is_surroundings_list(self) -> bool:
        """Whether environment and tree of a process are shown."""
        are_shown = self.are_surroundings_shown and not self.is_time_shown
        return self.page == "processes" and self.details_pid is not None and are_shown

    @property
    def message(self) -> str:
        """What the last key did, for some seconds."""
        text, until = self._message
        return text if time.monotonic() < until else ""

    def forget_message(self) -> None:
        """Show it no more."""
        self._message = ("", 0.0)

    def show_message(self, text: str) -> None:
        """Show a line for some seconds."""
        self._message = (text, time.monotonic() + MESSAGE_SECONDS)

    def is_restless(self) -> bool:
        """Whether the screen changes without anything coming in: a message to go, ages that grow, a pause."""
        if self._message[0] and not self.message:
            self.forget_message()
            return True
        return self.time.is_restless()

    def render_context(self) -> RenderContext | None:
        """What to draw; None while there is nothing yet."""
        timeline = self.feed.timeline
        index = self.time.index
        self._tell_of_recording()
        if index is None:
            return None
        snapshot = timeline.snapshot(index)
        if self._figures is None or self._shown is not snapshot:
            self._shown, self._figures = snapshot, self.narrowing.filtered_figures(snapshot, self.hidden_devices)
        snapshot = self._figures.snapshot
        if self.pid is not None and self.pid not in self._figures.ranks:
            self.show_message(f"PID {self.pid} holds no cores any more; all processes are shown")
            self.pid = None
        settings = self.settings
        where = self.list
        if self.page in _DEVICE_PAGES:
            where.cursor = self.device_index
        scene = RenderContext(
            snapshot=snapshot,
            figures=self._figures,
            series=timeline.series(index),
            events=self._shown_events(index) if self.page in _EVENT_PAGES else (),
            clock=self.time.clock(self._recording()),
            glyphs=self.glyphs,
            page=self.page,
            pid=self.pid,
            show_flops=settings.show_flops,
            is_compact=settings.is_compact,
            is_tree_shown=self.is_tree_shown,
            opened=self.opened,
            unfolded=self.unfolded,
            cursor=where.cursor,
            top=where.top,
            sort=settings.sort,
            is_descending=settings.is_descending,
            then_sort=settings.then_sort,
            is_then_descending=settings.is_then_descending,
            columns=settings.columns,
            filter_text=self.filter_text if self.edited_filter is None else self.edited_filter,
            search_text=self.search_text if self.edited_search is None else self.edited_search,
            thresholds=DisplayThresholds(settings.idle_below_percent / 100, settings.late_after_seconds),
            key_texts=self.keymap.changed,
            tagged=self.tagged,
            details_pid=self.details_pid,
            is_time_shown=self.is_time_shown,
            colour_by=settings.colour_by,
            device_index=min(self.device_index, max(0, len(snapshot.devices) - 1)),
            core_index=self.core_index,
            window_seconds=settings.window_seconds,
            is_read_only=self.is_read_only,
        )
        if self.page in _VERDICT_PAGES:
            from neurontools.model.health import verdicts

            scene.verdicts = verdicts(snapshot)
        if self.is_surroundings_list:
            scene.surroundings = self.beside.process_context(self._figures, self.details_pid)
        elif self.page in _JOB_PAGES:
            self._follow_selected(scene)
        elif self.page == "usage":
            scene.ended = self.narrowing.filter_ended(self.beside.ended(snapshot), snapshot, self._hidden)
        elif self.page == "host":
            scene.vcpus, scene.own_cost = self.beside.vcpus(snapshot, index), self.beside.own_cost()
        if scene.search_text:
            self._look_for(scene)
        scene.message = self._prompt(scene.found_text)
        return scene

    @property
    def _hidden(self) -> frozenset[int]:
        """The devices that are there and not shown."""
        return self._figures.hidden_devices if self._figures is not None else frozenset()

    def _shown_events(self, index: int) -> tuple[HostEvent, ...]:
        hidden, events = self._hidden, self.feed.timeline.events(index)
        return tuple(each for each in events if each.device_index not in hidden) if hidden else events

    def hide_devices(self, indices: frozenset[int]) -> None:
        """Show all devices but these, as far as they were asked for."""
        self.hidden_devices = indices
        self._shown = None

    def draw(self, width: int, height: int) -> TextPage:
        """The screen, every line of exactly `width` cells."""
        try:
            scene = self.render_context()
            page = draw_screen(scene, width, height) if scene is not None else None
        except SENSELESS as error:
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

    def _tell_of_recording(self) -> None:
        """Say once what is wrong with a recording; afterwards the title has it."""
        text = "" if self.feed.is_live else self.feed.status.text
        if text and text != self._told_of_source:
            self._told_of_source = text
            self.show_message(text)

    def _recording(self) -> str:
        feed = self.feed
        if not isinstance(feed, LiveFeed):
            return ""
        if feed.recording_error:
            self.show_message(feed.recording_error)
            feed.recording_error = ""
        return feed.recorder.path.rpartition("/")[2] if feed.recorder is not None else ""

    def rows(self, scene: RenderContext) -> Sequence[JobRow] | None:
        """The jobs and processes that the page lists; None where it lists something else."""
        if scene.page == "processes":
            return process_rows(scene) if scene.surroundings is None else None
        return job_rows(scene) if scene.page == "overview" and not scene.is_tree_shown else None

    def _follow_selected(self, scene: RenderContext) -> None:
        """Keep the cursor on its job or process while others come and go, or the order changes."""
        rows = self.rows(scene)
        if rows is None:
            return
        where, keys = self.list, [row.key for row in rows]
        selected = self.selected_rows.get(self.page)
        if selected in keys:
            where.cursor = keys.index(selected)
        elif keys:
            where.cursor = min(where.cursor, len(keys) - 1)
            self.selected_rows[self.page] = keys[where.cursor]
        scene.cursor = where.cursor

    def selected_job_row(self) -> JobRow | None:
        """The selected job or process of the page's list."""
        scene = self.render_context()
        rows = self.rows(scene) if scene is not None else None
        return rows[min(self.list.cursor, len(rows) - 1)] if rows else None

    def pids_of_row(self) -> tuple[int, ...]:
        """The process of the selected row, or all of its job."""
        row = self.selected_job_row()
        return row.pids if row is not None else ()

    def _look_for(self, scene: RenderContext) -> None:
        from neurontools.views.screen import list_entries, match_position, matching_rows

        scene.found = frozenset(matching_rows(scene, list_entries(scene)))
        scene.found_text = match_position(scene)

    def selected_key(self) -> str:
        """The selected row of the page's list, as a search names it."""
        from neurontools.views.screen import list_entries

        scene = self.render_context()
        rows = list_entries(scene) if scene is not None else []
        return rows[min(self.list.cursor, len(rows) - 1)].key if rows else ""

    def to_match(self, step: int) -> bool:
        """Go to the next row that the search finds (1), the one before (-1) or the one here, else the next (0).

        Round the end, into jobs and nodes that are not open; whether there is any.
        """
        from neurontools.views.screen import list_entries, matching_rows

        scene, key = self.render_context(), self.selected_key()
        rows = list_entries(scene, every=True) if scene is not None else []
        found = matching_rows(scene, rows) if scene is not None else []
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
        """Select the row that a search names so, if it is shown."""
        from neurontools.views.screen import list_entries

        scene = self.render_context()
        keys = [row.key for row in list_entries(scene)] if scene is not None else []
        if key in keys:
            self.list.count = len(keys)
            self.move_to(keys.index(key))

    def show_page(self, name: str) -> None:
        """Shows the page of this name, without details."""
        self.page = name
        self.details_opened_from = ""
        self.settings.page = name
        self.close_details()

    def close_details(self) -> None:
        """Shows the process list again."""
        self.details_pid, self.are_surroundings_shown, self.is_time_shown = None, False, False

    def move_to(self, position: int) -> None:
        """Move the cursor of the page's list to a row."""
        where = self.list
        scene = self.render_context() if self.page in _JOB_PAGES else None
        rows = self.rows(scene) if scene is not None else None
        count = where.count if rows is None else len(rows)
        where.cursor = min(max(0, position), max(0, count - 1))
        if rows:
            self.selected_rows[self.page] = rows[where.cursor].key
        elif self.page in _DEVICE_PAGES:
            self.device_index = where.cursor


@dataclass(slots=True)
class OpenDialog:
    """A dialog and what happens when one of its options is chosen; `chosen` may open the next dialog.

    `more` are further keys, which get the option that the cursor is at; `back` opens the dialog that it came from.
    """

    dialog: Dialog
    chosen: Callable[[int], OpenDialog | None] | None = None
    more: Mapping[str, Callable[[int], OpenDialog | None]] = field(default_factory=dict)
    back: Callable[[], OpenDialog | None] | None = None

    def move(self, lines: int) -> None:
        """Move the choice, or scroll the text."""
        dialog = self.dialog
        if dialog.options:
            self.move_to(min(max(0, dialog.cursor + lines), len(dialog.options) - 1))
        else:
            self.dialog = replace(dialog, top=min(max(0, dialog.top + lines), max(0, len(dialog.text) - 1)))

    def move_to(self, option: int) -> None:
        """Move the choice to an option."""
        self.dialog = replace(self.dialog, cursor=option)

    def press(self, key: str) -> OpenDialog | None:
        """The dialog that is open after a key, if any. A key it doesn't know is swallowed."""
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
