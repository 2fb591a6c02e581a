"""Actions that keys run on the dashboard."""

from __future__ import annotations

from neurontools.client.feed import LiveFeed
from neurontools.tui import keys
from neurontools.tui.dashboard_state import DashboardState, ListState, OpenDialog
from neurontools.tui.sort_order import sort_by
from neurontools.views.drawing.glyphs import Dialog
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.memory_sections import visible_nodes
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import PAGES, tab_pids


class OverviewActions(DashboardState):
    """The actions on the overview."""

    def toggle_flops(self) -> None:
        """Cores in teraflops or percent."""
        self.settings.show_flops = not self.settings.show_flops

    def toggle_tree(self) -> None:
        """Open the whole tree, or fold it to its summary; on the list of processes, all jobs."""
        if self.page == "processes":
            self._toggle_jobs()
            return
        from neurontools.views.memory_sections import all_node_keys

        scene = self.scene()
        if scene is None:
            return
        self.is_tree_shown = not self.is_tree_shown
        self.opened = all_node_keys(scene) if self.is_tree_shown else frozenset()
        self.lists["overview"] = ListState()

    def _toggle_jobs(self) -> None:
        scene = self.scene()
        rows = self.rows(scene) if scene is not None else None
        folders = {row.key for row in rows or () if row.rank is None}
        are_open = all(row.is_open for row in rows or () if row.rank is None)
        self.unfolded = self.unfolded - folders if are_open else self.unfolded | folders

    def toggle_compact(self) -> None:
        """As many jobs as there is room for, or every section."""
        self.settings.is_compact = not self.settings.is_compact
        self.is_tree_shown = False

    def _select_device(self, device_index: int) -> None:
        scene = self.scene()
        if scene is not None:
            places = [row.device_indices for row in job_rows(scene)]
            if self.is_tree_shown:
                places = [(node.device_index,) for node in visible_nodes(scene)]
            found = [position for position, devices in enumerate(places) if device_index in devices]
            if found:
                self.move_to(found[0])

    def _toggle_node(self, *, is_open: bool | None = None) -> bool:
        """Open or close the selected node, or job; False when it has no such state to change."""
        if not self.is_tree_shown:
            return self._toggle_job(is_open=is_open)
        scene = self.scene()
        rows = visible_nodes(scene) if scene is not None else []
        if not rows:
            return False
        node = rows[min(self.list.cursor, len(rows) - 1)]
        if not node.has_children or node.is_open is is_open:
            return False
        self.opened = self.opened - {node.key} if node.is_open else self.opened | {node.key}
        return True

    def _toggle_job(self, *, is_open: bool | None) -> bool:
        row = self.selected_job_row()
        if row is None or row.rank is not None or row.is_open is is_open:
            return False
        if row.is_open and row.key not in self.unfolded:
            self.tell("the filter passes a part of this job, which is listed; Esc clears it")
        self.unfolded = self.unfolded - {row.key} if row.is_open else self.unfolded | {row.key}
        return True


class PageActions(DashboardState):
    """The actions that show another page or tab."""

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

    def show_heatmap(self) -> None:
        """The page heat map."""
        self.show_page("heatmap")

    def show_health(self) -> None:
        """The page events and health."""
        self.show_page("health")

    def show_usage(self) -> None:
        """The page of users and what ended."""
        self.show_page("usage")

    def show_host(self) -> None:
        """The page of the host."""
        self.show_page("host")

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

    def _choose_tab(self, scene: RenderContext, pid: int | None) -> None:
        """Show one process, and on the pages of devices the first of its own."""
        self.pid = pid
        figures = scene.figures.process_figures(pid)
        if figures is not None and figures.process.device_indices:
            self.device_index, self.core_index = figures.process.device_indices[0], None


class ProcessActions(DashboardState):
    """The actions on processes."""

    def edit_filter(self) -> None:
        """Begin to type a filter."""
        self.show_page("processes")
        self.edited_filter = self.filter_text

    def edit_search(self) -> None:
        """Begin to type what to look for in the list of the page."""
        if not self.are_surroundings_shown:
            self.details_pid = None  # plots have no list
        self.edited_search, self.searched_from = "", self.selected_key()

    def sort_by(self, key: str) -> None:
        """Sort by a column, and show that."""
        sort_by(self.settings, key)
        if self.page != "processes":
            self.show_page("processes")

    def sort_left(self) -> None:
        """Sort by the column to the left."""
        self._turn_sort(-1)

    def sort_right(self) -> None:
        """Sort by the column to the right."""
        self._turn_sort(1)

    def _turn_sort(self, step: int) -> None:
        from neurontools.views.process_table import EVERY_COLUMN

        names = list(self.settings.columns) or [column.key for column in EVERY_COLUMN if column.offered]
        current = names.index(self.settings.sort) if self.settings.sort in names else 0
        self.sort_by(names[(current + step) % len(names)])

    def invert_sort(self) -> None:
        """Turn the order round."""
        self.settings.is_descending = not self.settings.is_descending

    def tag_process(self) -> None:
        """Tag or untag the selected process, or those of the job, and go on to the next."""
        pids = self.pids_of_row() if self.page == "processes" else ()
        if pids:
            self.tagged = self.tagged - set(pids) if self.tagged.issuperset(pids) else self.tagged | set(pids)
            self.move_to(self.list.cursor + 1)

    def untag_all(self) -> None:
        """Untag all."""
        self.tagged = frozenset()

    def toggle_surroundings(self) -> None:
        """Show the environment and the tree of the selected process in place of its plots, or the plots again."""
        has_details, is_time_shown = self.details_pid is not None, self.is_time_shown
        if self._select_details("a job has no environment of its own; Enter lists its processes"):
            self.is_time_shown = False
            self.are_surroundings_shown = is_time_shown or not (has_details and self.are_surroundings_shown)

    def toggle_time(self) -> None:
        """Show where the time of the selected process goes in place of its details, or the details again."""
        has_details = self.details_pid is not None
        if self._select_details("the time of a job is that of its processes; Enter lists them"):
            self.is_time_shown = not (has_details and self.is_time_shown)

    def _select_details(self, of_a_job: str) -> bool:
        """Has the selected process shown, if no other one is; for a job says what is to be done."""
        if self.details_pid is not None:
            return True
        row = self.selected_job_row() if self.page == "overview" else None
        if self.page != "processes":
            self.show_page("processes")
        if row is not None and row.pid is not None:
            self.selected_rows["processes"] = str(row.pid)
            self.details_of = "overview"
        self.scene()  # which selects a row
        if self.selected_pid is None:
            self.tell(of_a_job)
            return False
        self.details_pid = self.selected_pid
        return True

    def choose_signal(self) -> None:
        """Choose a signal for the tagged processes, else the selected one, and have it confirmed."""
        from neurontools.tui.signals import signal_dialog

        self.choices = signal_dialog(self)


class MovementActions(OverviewActions, ProcessActions):
    """The actions that move."""

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
        if scene is not None and not self.is_tree_shown:
            jobs = job_rows(scene)
            above = range(min(self.list.cursor, len(jobs) - 1), -1, -1)
            self.move_to(next((position for position in above if jobs[position].rank is None), self.list.cursor))
            return
        rows = visible_nodes(scene) if scene is not None else []
        if rows:
            parent = rows[min(self.list.cursor, len(rows) - 1)].key.rpartition("/")[0]
            found = [position for position, node in enumerate(rows) if node.key == parent]
            if found:
                self.move_to(found[0])

    def _move_device(self, direction: str) -> None:
        from neurontools.views.topology_page import neighbour_in_direction

        scene = self.scene()
        if scene is not None:
            self.device_index = neighbour_in_direction(scene, self.device_index, direction)

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
            self._enter_row()
        elif self.page == "processes":
            self._enter_process()
        elif self.page == "topology":
            self.show_page("history")
        elif self.page == "heatmap":
            self._enter_core()
        elif self.page == "health":
            self._enter_event()

    def _enter_core(self) -> None:
        from neurontools.views.heatmap_page import shown_cores

        scene = self.scene()
        cores = shown_cores(scene) if scene is not None else []
        if cores:
            core = cores[min(self.list.cursor, len(cores) - 1)]
            self.device_index, self.core_index = core.device_index, core.index
            self.show_page("history")

    def _enter_process(self) -> None:
        row = self.selected_job_row() if self.details_pid is None else None
        if row is not None and row.rank is None:
            self._toggle_job(is_open=None)
        else:
            self.details_pid = row.pid if row is not None else None

    def _enter_row(self) -> None:
        row = self.selected_job_row()
        if row is None or row.pid is None:
            self._toggle_node()
            return
        self.show_page("processes")
        self.selected_rows["processes"] = str(row.pid)
        self.details_pid = row.pid
        self.details_of = "overview"

    def _enter_event(self) -> None:
        from neurontools.views.health_page import event_time_of_row

        scene = self.scene()
        at = event_time_of_row(scene, self.list.cursor) if scene is not None else None
        if at is not None:
            self.time.at = at
            self.time.is_playing = False


_INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ProgramActions(DashboardState):
    """The actions on the program itself."""

    def quit(self) -> None:
        """End the program."""
        self.shell.quit()

    def suspend(self) -> None:
        """Stop the program and give the shell its terminal, until the shell goes on with it."""
        self.shell.suspend()

    def show_help(self) -> None:
        """Open the help."""
        lines = keys.help_lines(self.keymap.actions)
        self.choices = OpenDialog(Dialog("Keys", lines, hint="Up and down scroll, Esc closes"))

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
        """Clear the search of the list that is shown, else leave details, else clear the filter."""
        if self.search_text and (self.details_pid is None or self.is_of_surroundings):
            self.search_text = ""
        elif self.details_pid is not None and self.details_of:
            self.show_page(self.details_of)
        elif self.details_pid is not None:
            self.details_pid, self.are_surroundings_shown, self.is_time_shown = None, False, False
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


class SetupActions(ProcessActions):
    """The actions that choose what is shown, and how."""

    def show_setup(self) -> None:
        """Open the setup."""
        from neurontools.tui.setup_dialogs import setup_dialog

        self.choices = setup_dialog(self)

    def choose_sort(self) -> None:
        """Choose the columns to sort by."""
        from neurontools.tui.setup_dialogs import sort_dialog

        self.show_page("processes")
        self.choices = sort_dialog(self)


_WINDOWS = (60.0, 300.0, 900.0, 3600.0)


class TimeActions(DashboardState):
    """The actions on time, and how it is plotted."""

    def toggle_pause(self) -> None:
        """Hold what is shown, or go on."""
        self.time.toggle_pause()

    def step_back(self) -> None:
        """One moment back."""
        self.time.step(-1)

    def step_forward(self) -> None:
        """One moment forward."""
        self.time.step(1)

    def leap_back(self) -> None:
        """A minute back."""
        self.time.leap(-60.0)

    def leap_forward(self) -> None:
        """A minute forward."""
        self.time.leap(60.0)

    def next_event(self) -> None:
        """To the next match of the page's search, else the next event."""
        if self._is_searching(1):
            return
        if not self.time.to_event(1):
            self.tell("no later event")

    def previous_event(self) -> None:
        """To the match or event before."""
        if self._is_searching(-1):
            return
        if not self.time.to_event(-1):
            self.tell("no earlier event")

    def _is_searching(self, step: int) -> bool:
        """Go to another match where there is a search; whether there is."""
        if not self.search_text:
            return False
        shown = printable(self.search_text, 80)
        if not self.to_match(step):
            self.tell(f"nothing is found: {shown}")
        elif self.page != "processes" and (scene := self.scene()) is not None:  # which tells it in its heading
            self.tell(f"search: {shown}, {scene.found_text}")
        return True

    def go_live(self) -> None:
        """To the latest moment; of a recording that is being loaded, to its end as it comes."""
        self.time.go_live()
        if loading := self.time.loading_text():
            self.tell(f"the recording is {loading}; this goes to its end as it comes")

    def toggle_recording(self) -> None:
        """Start or end a recording."""
        self.tell(self.shell.toggle_recording())

    def toggle_colouring(self) -> None:
        """Colour devices by the other quantity."""
        self.settings.colour_by = "memory" if self.settings.colour_by == "utilization" else "utilization"

    def next_window(self) -> None:
        """The next time window."""
        later = [window for window in _WINDOWS if window > self.settings.window_seconds]
        self.settings.window_seconds = later[0] if later else _WINDOWS[0]
