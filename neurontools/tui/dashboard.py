"""The state of the dashboard and what each key does to it; knows nothing of Textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.feed import Feed, LiveFeed
from neurontools.tui import keys
from neurontools.tui.choices import Choices
from neurontools.tui.settings import Settings
from neurontools.tui.time_cursor import TimeCursor
from neurontools.views.dialog import over
from neurontools.views.figures import Figures
from neurontools.views.frame import frame
from neurontools.views.glyphs import Glyphs
from neurontools.views.line import Page, fit, foreign
from neurontools.views.memory_tree import nodes
from neurontools.views.pages import PAGES
from neurontools.views.process_page import process_rows
from neurontools.views.scene import Scene
from neurontools.views.tabs import tab_pids

if TYPE_CHECKING:
    from neurontools.health import Verdict

MESSAGE_SECONDS = 6.0
_INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MOST_DEVICES = 4096
# A recording may hold anything: one moment that makes no sense must not take the others with it.
SENSELESS = (ArithmeticError, LookupError, ValueError, TypeError, OSError)
_SERIES_LENGTH = 480
_WINDOWS = (60.0, 300.0, 900.0, 3600.0)
_VERDICT_PAGES = ("health", "topology")


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Shell:
    """What the dashboard asks of the program around it."""

    quit: Callable[[], None] = _nothing
    show_palette: Callable[[], None] = _nothing
    next_theme: Callable[[], str] = lambda: ""
    save_screenshot: Callable[[], str] = lambda: ""
    toggle_recording: Callable[[], str] = lambda: ""


@dataclass(slots=True)
class _List:
    """Where a page's list stands."""

    cursor: int = 0
    top: int = 0
    height: int = 1
    count: int = 0


@dataclass
class Dashboard:
    """Everything chosen on the screen, and the actions that change it."""

    feed: Feed
    settings: Settings
    glyphs: Glyphs
    is_read_only: bool = False
    shell: Shell = field(default_factory=Shell)
    pid: int | None = None
    opened: frozenset[str] = frozenset()
    filter_text: str = ""
    edited_filter: str | None = None  # while it is being typed
    tagged: frozenset[int] = frozenset()
    selected_pid: int | None = None
    details_pid: int | None = None
    device_index: int = 0
    core_index: int | None = None
    choices: Choices | None = None  # an open dialog

    def __post_init__(self) -> None:
        self.time = TimeCursor(self.feed)
        if isinstance(self.feed, LiveFeed):
            self.time.interval_seconds = self.feed.interval_seconds
        self.page = self.settings.page if any(page.name == self.settings.page for page in PAGES) else "overview"
        self._lists: dict[str, _List] = {}
        self._figures: Figures | None = None
        self._message = ("", 0.0)
        self._drawn = Page()
        self._health_key: tuple[float, float] | None = None
        self._verdicts: tuple[Verdict, ...] = ()

    # What is shown

    @property
    def list(self) -> _List:
        """Where the list of the current page stands."""
        return self._lists.setdefault(self.page, _List())

    @property
    def message(self) -> str:
        """What the last key did, for some seconds."""
        text, until = self._message
        return text if time.monotonic() < until else ""

    def tell(self, text: str) -> None:
        """Show a line for some seconds."""
        self._message = (text, time.monotonic() + MESSAGE_SECONDS)

    def is_restless(self) -> bool:
        """Whether the screen changes without anything coming in: a message to go, ages that grow, a pause."""
        if self._message[0] and not self.message:
            self._message = ("", 0.0)
            return True
        return self.time.is_restless()

    def scene(self) -> Scene | None:
        """What to draw; None while there is nothing yet."""
        timeline = self.feed.timeline
        index = self.time.index
        if index is None:
            return None
        snapshot = timeline.snapshot(index)
        if self._figures is None or self._figures.snapshot is not snapshot:
            self._figures = Figures(snapshot)
        if self.pid is not None and self.pid not in self._figures.by_pid:
            self.tell(f"PID {self.pid} holds no cores any more; all processes are shown")
            self.pid = None
        settings = self.settings
        length = _SERIES_LENGTH if settings.window_seconds <= 300 and self.page != "history" else 3700
        where = self.list
        scene = Scene(
            snapshot=snapshot,
            figures=self._figures,
            series=timeline.series(index, length),
            events=timeline.events(index) if self.page == "health" else (),
            clock=self.time.clock(self._recording()),
            glyphs=self.glyphs,
            page=self.page,
            pid=self.pid,
            show_flops=settings.show_flops,
            opened=self.opened,
            cursor=where.cursor,
            top=where.top,
            sort=settings.sort,
            is_descending=settings.is_descending,
            filter_text=self.filter_text if self.edited_filter is None else self.edited_filter,
            tagged=self.tagged,
            details_pid=self.details_pid,
            colour_by=settings.colour_by,
            device_index=min(self.device_index, max(0, len(snapshot.devices) - 1)),
            core_index=self.core_index,
            window_seconds=settings.window_seconds,
            message=self._prompt(),
            is_read_only=self.is_read_only,
        )
        if self.page in _VERDICT_PAGES:
            scene.verdicts = self._judge(index)
        if self.page == "processes":
            self._follow_selected(scene)
        return scene

    def draw(self, width: int, height: int) -> Page:
        """The screen, every line of exactly `width` cells."""
        try:
            scene = self.scene()
            page = frame(scene, width, height) if scene is not None else None
        except SENSELESS as error:
            page = self._notice(f"this moment can't be drawn: {type(error).__name__}: {error}", width, height)
        if page is None:
            page = self._notice(self.feed.status.text or "waiting for the first snapshot", width, height)
        else:
            where = self.list
            where.top, where.count = page.list_top, page.list_count
            where.height = max(1, page.list_height)
            where.cursor = min(where.cursor, max(0, where.count - 1)) if where.count else where.cursor
        if self.choices is not None:
            page = over(page, self.choices.dialog(), self.glyphs, width, height)
        self._drawn = page
        return page

    def _notice(self, text: str, width: int, height: int) -> Page:
        page = Page([fit(((" neuron-top", "title"),), width, "title"), fit(((f" {foreign(text)}", "strong"),), width)])
        page.lines = [*page.lines, *[fit((), width)] * height][:height]
        return page

    def _prompt(self) -> str:
        if self.edited_filter is not None:
            return f"filter: {self.edited_filter}_   (Enter keep, Esc clear; words, or column<value: user=root util<5)"
        return self.message

    def _recording(self) -> str:
        feed = self.feed
        if not isinstance(feed, LiveFeed):
            return ""
        if feed.recording_error:
            self.tell(feed.recording_error)
            feed.recording_error = ""
        return feed.recorder.path.rpartition("/")[2] if feed.recorder is not None else ""

    def _judge(self, index: int) -> tuple[Verdict, ...]:
        """The verdicts on the moment shown against one some minutes before."""
        from neurontools import health

        moments = self.feed.timeline.moments
        if self.feed.timeline.snapshot(index).instance.device_count > MOST_DEVICES:
            raise ValueError("more devices than any host has")
        try:
            limits = health.Thresholds(**(self.settings.health or {}))  # type: ignore[arg-type]
        except TypeError:
            limits = health.Thresholds()
        at = moments[index].at_unix_seconds
        before = self.feed.timeline.index_at(at - limits.window_seconds)
        key = (at, moments[before].at_unix_seconds)
        if self._health_key != key:
            earlier = moments[before].snapshot() if before != index else None
            self._verdicts = health.verdicts(self.feed.timeline.snapshot(index), earlier, limits)
            self._health_key = key
        return self._verdicts

    def _follow_selected(self, scene: Scene) -> None:
        """Keep the cursor on its process while the list is sorted anew."""
        pids = [figures.pid for figures in process_rows(scene)]
        where = self.list
        if self.selected_pid in pids:
            where.cursor = pids.index(self.selected_pid)
        elif pids:
            where.cursor = min(where.cursor, len(pids) - 1)
            self.selected_pid = pids[where.cursor]
        scene.cursor = where.cursor

    # Input

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does; whether it means anything."""
        if self.choices is not None:
            return self.choices.press(key, self)
        if self.edited_filter is not None:
            return self._edit(key, character)
        action = keys.BY_KEY.get(key)
        if action is None:
            return False
        self._message = ("", 0.0)
        try:
            if action.name == "choose_tab":
                self.choose_tab(int(key))
            else:
                getattr(self, action.name)()
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
        return True

    def click(self, column: int, row: int) -> bool:
        """Do what a click at a cell does; whether it means anything."""
        try:
            return self._click(column, row)
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
            return True

    def _click(self, column: int, row: int) -> bool:
        target = self._drawn.target_at(column, row)
        if target is None:
            return False
        action, argument = target.action, target.argument
        if self.choices is not None:
            if action == "option":
                self.choices.cursor = int(argument)
                return self.choices.press("enter", self)
            return False
        if action == "key":
            return self.press(argument)
        if action == "page":
            self._show(argument)
        elif action == "tab":
            self.pid = int(argument) if argument else None
        elif action == "sort":
            self._sort_by(argument)
        elif action == "scrub":
            self.feed.want_past()
            self.time.seek(float(argument))
        elif action == "device":
            self.device_index, self.core_index = int(argument), None
            if self.page == "overview":
                self._select_device(int(argument))
        elif action == "core":
            self.core_index = int(argument)
        elif action == "row":
            was = self.list.cursor
            self._move_to(int(argument))
            if was == self.list.cursor and self.page in ("overview", "processes"):
                self.enter()
        return True

    def scroll(self, lines: int) -> None:
        """What the mouse wheel does."""
        if self.choices is not None:
            self.choices.move(lines)
        else:
            self._move_to(self.list.cursor + lines)

    def _edit(self, key: str, character: str | None) -> bool:
        text = self.edited_filter or ""
        if key == "enter":
            self.filter_text, self.edited_filter = text.strip(), None
        elif key == "escape":
            self.filter_text, self.edited_filter = "", None
        elif key in ("backspace", "ctrl+h"):
            self.edited_filter = text[:-1]
        elif key == "ctrl+u":
            self.edited_filter = ""
        elif key in ("up", "down"):
            self._move_to(self.list.cursor + (1 if key == "down" else -1))
        elif character is not None and character.isprintable() and len(text) < 200:
            self.edited_filter = text + character
        else:
            return False
        return True

    # General

    def quit(self) -> None:
        """End the program."""
        self.shell.quit()

    def show_help(self) -> None:
        """Open the help."""
        self.choices = Choices("Keys", text=keys.help_lines(), hint="Up and down scroll, Esc closes")

    def show_palette(self) -> None:
        """Open the command palette."""
        self.shell.show_palette()

    def next_theme(self) -> None:
        """Change to the next theme."""
        self.tell(f"theme: {self.shell.next_theme()}")

    def save_screenshot(self) -> None:
        """Save the screen as a picture."""
        self.tell(self.shell.save_screenshot())

    def go_back(self) -> None:
        """Leave details, else clear the filter."""
        if self.details_pid is not None:
            self.details_pid = None
        elif self.page == "processes" and self.filter_text:
            self.filter_text = ""

    def faster(self) -> None:
        """Shorten the interval, or replay faster."""
        self._change_rate(1)

    def slower(self) -> None:
        """Lengthen the interval, or replay slower."""
        self._change_rate(-1)

    def _change_rate(self, step: int) -> None:
        if not isinstance(self.feed, LiveFeed):
            self.tell(f"replay at {self.time.change_speed(step):g}x")
            return
        now = self.feed.interval_seconds
        faster = [interval for interval in _INTERVALS if interval < now - 1e-9]
        slower = [interval for interval in _INTERVALS if interval > now + 1e-9]
        wanted = (faster[-1:] if step > 0 else slower[:1]) or [now]
        self.time.interval_seconds = wanted[0]
        self.feed.set_interval(wanted[0])
        self.tell(f"a refresh every {wanted[0]:g} s, as far as the daemon samples that often")

    # Pages and tabs

    def _show(self, name: str) -> None:
        self.page = name
        self.settings.page = name
        self.details_pid = None
        if name == "history":
            self.feed.want_past()

    def show_overview(self) -> None:
        """The page overview."""
        self._show("overview")

    def show_processes(self) -> None:
        """The page of processes."""
        self._show("processes")

    def show_topology(self) -> None:
        """The page topology."""
        self._show("topology")

    def show_history(self) -> None:
        """The page history."""
        self._show("history")

    def show_health(self) -> None:
        """The page events and health."""
        self._show("health")

    def next_page(self) -> None:
        """The page to the right."""
        self._turn(1)

    def previous_page(self) -> None:
        """The page to the left."""
        self._turn(-1)

    def _turn(self, step: int) -> None:
        names = [page.name for page in PAGES]
        self._show(names[(names.index(self.page) + step) % len(names)])

    def choose_tab(self, number: int) -> None:
        """The tab of this number, if there is one."""
        scene = self.scene()
        if scene is not None and number <= len(tab_pids(scene)):
            self.pid = tab_pids(scene)[number - 1]

    def next_tab(self) -> None:
        """The tab to the right; after the last the first."""
        self._turn_tab(1)

    def previous_tab(self) -> None:
        """The tab to the left; before the first the last."""
        self._turn_tab(-1)

    def _turn_tab(self, step: int) -> None:
        scene = self.scene()
        if scene is not None:
            pids = tab_pids(scene)
            current = pids.index(self.pid) if self.pid in pids else 0
            self.pid = pids[(current + step) % len(pids)]

    # The overview

    def toggle_flops(self) -> None:
        """Cores in teraflops or percent."""
        self.settings.show_flops = not self.settings.show_flops

    def toggle_tree(self) -> None:
        """Open the whole tree; close it when anything is open."""
        from neurontools.views.memory_tree import every_key

        scene = self.scene()
        if scene is None:
            return
        is_any_open = any(node.is_open for node in nodes(scene))
        self.opened = frozenset() if is_any_open else every_key(scene)
        self._lists["overview"] = _List()

    def _select_device(self, device_index: int) -> None:
        scene = self.scene()
        if scene is not None:
            rows = nodes(scene)
            found = [position for position, node in enumerate(rows) if node.device_index == device_index]
            if found:
                self._move_to(found[0])

    def _toggle_node(self, *, is_open: bool | None = None) -> bool:
        """Open or close the selected node; False when it has no such state to change."""
        scene = self.scene()
        rows = nodes(scene) if scene is not None else []
        if not rows:
            return False
        node = rows[min(self.list.cursor, len(rows) - 1)]
        if not node.has_children or node.is_open is is_open:
            return False
        self.opened = self.opened - {node.key} if node.is_open else self.opened | {node.key}
        return True

    # Moving

    def _move_to(self, position: int) -> None:
        where = self.list
        count = max(where.count, 1)
        where.cursor = min(max(0, position), count - 1)
        if self.page == "processes":
            scene = self.scene()
            rows = process_rows(scene) if scene is not None else []
            self.selected_pid = rows[min(position, len(rows) - 1)].pid if rows and position >= 0 else self.selected_pid
            if position < 0 and rows:
                self.selected_pid = rows[0].pid
        elif self.page in ("topology", "history"):
            self.device_index = where.cursor

    def move_up(self) -> None:
        """One row up."""
        if self.page == "topology":
            self._move_device("up")
        else:
            self._move_to(self.list.cursor - 1)

    def move_down(self) -> None:
        """One row down."""
        if self.page == "topology":
            self._move_device("down")
        else:
            self._move_to(self.list.cursor + 1)

    def move_left(self) -> None:
        """Close a node, or go to its parent; the device to the left; the sort column to the left."""
        if self.page == "overview":
            if not self._toggle_node(is_open=False):
                self._to_parent()
        elif self.page == "topology":
            self._move_device("left")
        elif self.page == "history":
            self._move_core(-1)
        elif self.page == "processes":
            self.sort_left()

    def move_right(self) -> None:
        """Open a node; the device to the right; the sort column to the right."""
        if self.page == "overview":
            self._toggle_node(is_open=True)
        elif self.page == "topology":
            self._move_device("right")
        elif self.page == "history":
            self._move_core(1)
        elif self.page == "processes":
            self.sort_right()

    def _to_parent(self) -> None:
        scene = self.scene()
        rows = nodes(scene) if scene is not None else []
        if rows:
            parent = rows[min(self.list.cursor, len(rows) - 1)].key.rpartition("/")[0]
            found = [position for position, node in enumerate(rows) if node.key == parent]
            if found:
                self._move_to(found[0])

    def _move_device(self, direction: str) -> None:
        from neurontools.views.topology_page import beside

        scene = self.scene()
        if scene is not None:
            self.device_index = beside(scene, self.device_index, direction)

    def _move_core(self, step: int) -> None:
        scene = self.scene()
        if scene is None:
            return
        device = min(self.device_index, len(scene.snapshot.devices) - 1)
        options: list[int | None] = [None]
        options += [core.index for core in scene.figures.cores if core.device_index == device]
        current = options.index(self.core_index) if self.core_index in options else 0
        self.core_index = options[(current + step) % len(options)]

    def page_up(self) -> None:
        """A screen up."""
        self._move_to(self.list.cursor - self.list.height)

    def page_down(self) -> None:
        """A screen down."""
        self._move_to(self.list.cursor + self.list.height)

    def move_first(self) -> None:
        """The first row."""
        self._move_to(0)

    def move_last(self) -> None:
        """The last row."""
        self._move_to(max(0, self.list.count - 1))

    def enter(self) -> None:
        """Open or close a node; a process's details; a device's history."""
        if self.page == "overview":
            self._toggle_node()
        elif self.page == "processes":
            self.details_pid = self.selected_pid if self.details_pid is None else None
            if self.details_pid is not None:
                self.feed.want_past()
        elif self.page == "topology":
            self._lists.setdefault("history", _List()).cursor = self.device_index
            self._show("history")
        elif self.page == "health":
            self._enter_event()

    def _enter_event(self) -> None:
        from neurontools.views.health_page import moment_of_row

        scene = self.scene()
        at = moment_of_row(scene, self.list.cursor) if scene is not None else None
        if at is not None:
            self.time.at = at
            self.time.is_playing = False

    # Processes

    def edit_filter(self) -> None:
        """Begin to type a filter."""
        self._show("processes")
        self.edited_filter = self.filter_text

    def choose_sort(self) -> None:
        """Choose the column to sort by."""
        from neurontools.views.process_columns import EVERY_COLUMN

        options = tuple(f"{column.title:<9} {column.about}" for column in EVERY_COLUMN)
        names = [column.key for column in EVERY_COLUMN]
        cursor = names.index(self.settings.sort) if self.settings.sort in names else 0
        self.choices = Choices(
            "Sort by", options=options, cursor=cursor, chosen=lambda number: self._sort_by(names[number])
        )

    def _sort_by(self, key: str) -> None:
        """Sort by a column; by the same again: the other way round. Numbers begin with the largest."""
        from neurontools.views.process_columns import BY_KEY

        if self.settings.sort == key:
            self.settings.is_descending = not self.settings.is_descending
        else:
            self.settings.sort = key
            self.settings.is_descending = not BY_KEY[key].is_text and key != "pid"
        if self.page != "processes":
            self._show("processes")

    def sort_left(self) -> None:
        """Sort by the column to the left."""
        self._turn_sort(-1)

    def sort_right(self) -> None:
        """Sort by the column to the right."""
        self._turn_sort(1)

    def _turn_sort(self, step: int) -> None:
        from neurontools.views.process_columns import EVERY_COLUMN

        names = [column.key for column in EVERY_COLUMN]
        current = names.index(self.settings.sort) if self.settings.sort in names else 0
        self._sort_by(names[(current + step) % len(names)])

    def invert_sort(self) -> None:
        """Turn the order round."""
        self.settings.is_descending = not self.settings.is_descending

    def tag_process(self) -> None:
        """Tag or untag the selected process, and go on to the next."""
        if self.page == "processes" and self.selected_pid is not None:
            self.tagged ^= {self.selected_pid}
            self._move_to(self.list.cursor + 1)

    def untag_all(self) -> None:
        """Untag all."""
        self.tagged = frozenset()

    def choose_signal(self) -> None:
        """Choose a signal for the tagged processes, else the selected one, and have it confirmed."""
        from neurontools.tui.signal_choice import signal_choices

        self.choices = signal_choices(self)

    # Time

    def toggle_pause(self) -> None:
        """Hold what is shown, or go on."""
        self.time.toggle_pause()

    def step_back(self) -> None:
        """One moment back."""
        self.feed.want_past()
        self.time.step(-1)

    def step_forward(self) -> None:
        """One moment forward."""
        self.time.step(1)

    def leap_back(self) -> None:
        """A minute back."""
        self.feed.want_past()
        self.time.leap(-60.0)

    def leap_forward(self) -> None:
        """A minute forward."""
        self.time.leap(60.0)

    def next_event(self) -> None:
        """To the next event."""
        if not self.time.to_event(1):
            self.tell("no later event")

    def previous_event(self) -> None:
        """To the event before."""
        self.feed.want_past()
        if not self.time.to_event(-1):
            self.tell("no earlier event")

    def go_live(self) -> None:
        """To the latest moment."""
        self.time.go_live()

    def toggle_recording(self) -> None:
        """Start or end a recording."""
        self.tell(self.shell.toggle_recording())

    # Topology and history

    def toggle_colouring(self) -> None:
        """Colour devices by the other quantity."""
        self.settings.colour_by = "memory" if self.settings.colour_by == "utilization" else "utilization"

    def next_window(self) -> None:
        """The next time window."""
        later = [window for window in _WINDOWS if window > self.settings.window_seconds]
        self.settings.window_seconds = later[0] if later else _WINDOWS[0]
        self.feed.want_past()
