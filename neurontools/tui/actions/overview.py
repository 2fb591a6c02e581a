"""What keys do to the overview: the unit of the cores, and the memory tree."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState, ListState
from neurontools.views.overview.job_list import job_rows
from neurontools.views.overview.memory_tree import nodes


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
        from neurontools.views.overview.memory_tree import every_key

        scene = self.scene()
        if scene is None:
            return
        self.is_tree_shown = not self.is_tree_shown
        self.opened = every_key(scene) if self.is_tree_shown else frozenset()
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
                places = [(node.device_index,) for node in nodes(scene)]
            found = [position for position, devices in enumerate(places) if device_index in devices]
            if found:
                self.move_to(found[0])

    def _toggle_node(self, *, is_open: bool | None = None) -> bool:
        """Open or close the selected node, or job; False when it has no such state to change."""
        if not self.is_tree_shown:
            return self._toggle_job(is_open=is_open)
        scene = self.scene()
        rows = nodes(scene) if scene is not None else []
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
