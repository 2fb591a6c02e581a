"""What each key, click and turn of the wheel does; knows nothing of Textual."""

from __future__ import annotations

from neurontools.history.feed import LiveFeed
from neurontools.tui import keys
from neurontools.tui.choices import Choices
from neurontools.tui.dashboard_state import SENSELESS, ListState
from neurontools.tui.process_actions import ProcessActions
from neurontools.tui.time_actions import TimeActions
from neurontools.views.drawing.dialog import Dialog
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.tabs import tab_pids
from neurontools.views.overview.memory_tree import nodes
from neurontools.views.pages import PAGES

_INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Dashboard(ProcessActions, TimeActions):
    """The dashboard: what is chosen and shown, and the actions that change it."""

    # Input

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does; whether it means anything."""
        if self.choices is not None:
            return self._choose(self.choices, key)
        if self.edited_filter is not None:
            return self._edit(key, character)
        action = keys.BY_KEY.get(key)
        if action is None:
            return False
        self.forget_message()
        try:
            if action.name == "choose_tab":
                self.choose_tab(int(key))
            else:
                getattr(self, action.name)()
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
        return True

    def _choose(self, choices: Choices, key: str) -> bool:
        """Do what a key does while a dialog is open."""
        self.choices = None  # also when what was chosen fails
        self.choices, quits = choices.press(key)
        if quits:
            self.shell.quit()
        return True

    def click(self, column: int, row: int) -> bool:
        """Do what a click at a cell does; whether it means anything."""
        try:
            return self._click(column, row)
        except SENSELESS as error:
            self.tell(f"this can't be done at this moment: {error}")
            return True

    def _click(self, column: int, row: int) -> bool:
        target = self.drawn.target_at(column, row)
        if target is None:
            return False
        action, argument = target.action, target.argument
        if self.choices is not None:
            if action == "option":
                self.choices.move_to(int(argument))
                return self._choose(self.choices, "enter")
            return False
        if action == "key":
            return self.press(argument)
        if action == "page":
            self.show_page(argument)
        elif action == "tab":
            scene = self.scene()
            if scene is not None:
                self._choose_tab(scene, int(argument) if argument else None)
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
            self.move_to(int(argument))
            if was == self.list.cursor and self.page in ("overview", "processes"):
                self.enter()
        return True

    def scroll(self, lines: int) -> None:
        """What the mouse wheel does."""
        if self.choices is not None:
            self.choices.move(lines)
        else:
            self.move_to(self.list.cursor + lines)

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
            self.move_to(self.list.cursor + (1 if key == "down" else -1))
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
        self.choices = Choices(Dialog("Keys", keys.help_lines(), hint="Up and down scroll, Esc closes"))

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

    def show_overview(self) -> None:
        """The page overview."""
        self.show_page("overview")

    def show_processes(self) -> None:
        """The page of processes."""
        self.show_page("processes")

    def show_topology(self) -> None:
        """The page topology."""
        self.show_page("topology")

    def show_history(self) -> None:
        """The page history."""
        self.show_page("history")

    def show_health(self) -> None:
        """The page events and health."""
        self.show_page("health")

    def next_page(self) -> None:
        """The page to the right."""
        self._turn(1)

    def previous_page(self) -> None:
        """The page to the left."""
        self._turn(-1)

    def _turn(self, step: int) -> None:
        names = [page.name for page in PAGES]
        self.show_page(names[(names.index(self.page) + step) % len(names)])

    def choose_tab(self, number: int) -> None:
        """The tab of this number, if there is one."""
        scene = self.scene()
        if scene is not None and number <= len(tab_pids(scene)):
            self._choose_tab(scene, tab_pids(scene)[number - 1])

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
            self._choose_tab(scene, pids[(current + step) % len(pids)])

    def _choose_tab(self, scene: Scene, pid: int | None) -> None:
        """Show one process, and on the pages of devices the first of its own."""
        self.pid = pid
        figures = scene.figures.by_pid.get(pid) if pid is not None else None
        if figures is not None and figures.process.device_indices:
            self.device_index, self.core_index = figures.process.device_indices[0], None

    # The overview

    def toggle_flops(self) -> None:
        """Cores in teraflops or percent."""
        self.settings.show_flops = not self.settings.show_flops

    def toggle_tree(self) -> None:
        """Open the whole tree; close it when anything is open."""
        from neurontools.views.overview.memory_tree import every_key

        scene = self.scene()
        if scene is None:
            return
        is_any_open = any(node.is_open for node in nodes(scene))
        self.opened = frozenset() if is_any_open else every_key(scene)
        self.lists["overview"] = ListState()

    def _select_device(self, device_index: int) -> None:
        scene = self.scene()
        if scene is not None:
            rows = nodes(scene)
            found = [position for position, node in enumerate(rows) if node.device_index == device_index]
            if found:
                self.move_to(found[0])

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

    def move_up(self) -> None:
        """One row up."""
        if self.page == "topology":
            self._move_device("up")
        else:
            self.move_to(self.list.cursor - 1)

    def move_down(self) -> None:
        """One row down."""
        if self.page == "topology":
            self._move_device("down")
        else:
            self.move_to(self.list.cursor + 1)

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
                self.move_to(found[0])

    def _move_device(self, direction: str) -> None:
        from neurontools.views.topology.page import beside

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
        self.move_to(self.list.cursor - self.list.height)

    def page_down(self) -> None:
        """A screen down."""
        self.move_to(self.list.cursor + self.list.height)

    def move_first(self) -> None:
        """The first row."""
        self.move_to(0)

    def move_last(self) -> None:
        """The last row."""
        self.move_to(max(0, self.list.count - 1))

    def enter(self) -> None:
        """Open or close a node; a process's details; a device's history."""
        if self.page == "overview":
            self._toggle_node()
        elif self.page == "processes":
            self.details_pid = self.selected_pid if self.details_pid is None else None
            if self.details_pid is not None:
                self.feed.want_past()
        elif self.page == "topology":
            self.lists.setdefault("history", ListState()).cursor = self.device_index
            self.show_page("history")
        elif self.page == "health":
            self._enter_event()

    def _enter_event(self) -> None:
        from neurontools.views.health_page import moment_of_row

        scene = self.scene()
        at = moment_of_row(scene, self.list.cursor) if scene is not None else None
        if at is not None:
            self.time.at = at
            self.time.is_playing = False
