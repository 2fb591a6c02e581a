"""What keys do to pages and tabs: which page, and of which process."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.tabs import tab_pids
from neurontools.views.pages import PAGES


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

    def _choose_tab(self, scene: Scene, pid: int | None) -> None:
        """Show one process, and on the pages of devices the first of its own."""
        self.pid = pid
        figures = scene.figures.of(pid)
        if figures is not None and figures.process.device_indices:
            self.device_index, self.core_index = figures.process.device_indices[0], None
