"""What keys do to the cursor: up, down, in and out, on each page in its own way."""

from __future__ import annotations

from neurontools.tui.actions.overview import OverviewActions
from neurontools.tui.actions.process import ProcessActions
from neurontools.views.overview.job_list import job_rows
from neurontools.views.overview.memory_tree import nodes


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
        from neurontools.views.heatmap_page import cores_shown

        scene = self.scene()
        cores = cores_shown(scene) if scene is not None else []
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
        from neurontools.views.health_page import moment_of_row

        scene = self.scene()
        at = moment_of_row(scene, self.list.cursor) if scene is not None else None
        if at is not None:
            self.time.at = at
            self.time.is_playing = False
