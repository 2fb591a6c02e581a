"""What keys do to the overview: the unit of the cores, and the memory tree."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState, ListState
from neurontools.views.overview.memory_tree import nodes


class OverviewActions(DashboardState):
    """The actions on the overview."""

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
