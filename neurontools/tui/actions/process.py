"""What keys do to the list of processes: filter, sort, tags, signals."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState
from neurontools.tui.sort_order import sort_by


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
        from neurontools.views.processes.columns import EVERY_COLUMN

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
        from neurontools.tui.signal_choice import signal_choices

        self.choices = signal_choices(self)
