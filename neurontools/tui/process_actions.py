"""Actions on the list of processes: filter, search, order, tags, signals, and the details of a process."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState


def edit_filter(dashboard: DashboardState) -> None:
    dashboard.show_page("processes")
    dashboard.edited_filter = dashboard.filter_text


def edit_search(dashboard: DashboardState) -> None:
    if not dashboard.is_context_shown:
        dashboard.details_pid = None  # a search needs a list, so it closes the plots
    dashboard.edited_search, dashboard.search_start = "", dashboard.selected_key()


def choose_sort(dashboard: DashboardState) -> None:
    from neurontools.tui.dialogs import sort_dialog

    dashboard.show_page("processes")
    dashboard.open_dialog = sort_dialog(dashboard)


def sort_by(dashboard: DashboardState, key: str) -> None:
    """Sorts the process list by the column `key`, and shows the process list."""
    dashboard.settings.sort_by(key)
    if dashboard.page != "processes":
        dashboard.show_page("processes")


def turn_sort(dashboard: DashboardState, step: int) -> None:
    from neurontools.views.process_table import EVERY_COLUMN

    settings = dashboard.settings
    names = list(settings.columns) or [column.key for column in EVERY_COLUMN if column.offered]
    current = names.index(settings.sort) if settings.sort in names else 0
    sort_by(dashboard, names[(current + step) % len(names)])


def invert_sort(dashboard: DashboardState) -> None:
    dashboard.settings.is_descending = not dashboard.settings.is_descending


def tag_process(dashboard: DashboardState) -> None:
    """Tags or untags the selected process, or all processes of the selected job. Moves the cursor one row down."""
    pids = dashboard.pids_of_row() if dashboard.page == "processes" else ()
    if pids:
        tagged = dashboard.tagged
        dashboard.tagged = tagged - set(pids) if tagged.issuperset(pids) else tagged | set(pids)
        dashboard.move_to(dashboard.list.cursor + 1)


def untag_all(dashboard: DashboardState) -> None:
    dashboard.tagged = frozenset()


def choose_signal(dashboard: DashboardState) -> None:
    from neurontools.tui.dialogs import signal_dialog

    dashboard.open_dialog = signal_dialog(dashboard)


def toggle_process_context(dashboard: DashboardState) -> None:
    """Switches the details of a process between the plots, and the environment and process tree."""
    has_details, is_time_shown = dashboard.details_pid is not None, dashboard.is_time_shown
    if _open_details(dashboard, "a job has no environment; Enter lists its processes, which have one"):
        dashboard.is_time_shown = False
        dashboard.is_context_shown = is_time_shown or not (has_details and dashboard.is_context_shown)


def toggle_time(dashboard: DashboardState) -> None:
    """Switches the details of a process between plots and the time breakdown."""
    has_details = dashboard.details_pid is not None
    if _open_details(dashboard, "the time breakdown is for one process; Enter lists the processes of this job"):
        dashboard.is_time_shown = not (has_details and dashboard.is_time_shown)


def _open_details(dashboard: DashboardState, message_for_job: str) -> bool:
    """Opens the details of the selected process unless details are open. Returns whether details are open.

    Shows `message_for_job` if a job is selected.
    """
    if dashboard.details_pid is not None:
        return True
    row = dashboard.selected_job_row() if dashboard.page == "overview" else None
    if dashboard.page != "processes":
        dashboard.show_page("processes")
    if row is not None and row.pid is not None:
        dashboard.selected_rows["processes"] = str(row.pid)
        dashboard.details_opened_from = "overview"
    dashboard.render_context()  # drawing selects a row
    if dashboard.selected_pid is None:
        dashboard.show_message(message_for_job)
        return False
    dashboard.details_pid = dashboard.selected_pid
    return True


def toggle_forest(dashboard: DashboardState) -> None:
    """Shows the tree of all processes instead of the list, or the list again."""
    is_shown = dashboard.page == "processes" and dashboard.details_pid is None and dashboard.is_forest_shown
    dashboard.show_page("processes")
    dashboard.is_forest_shown = not is_shown


def open_tree_row(dashboard: DashboardState) -> None:
    """Opens the details of the process that is selected in the tree, if it uses devices."""
    context, pid = dashboard.render_context(), dashboard.selected_pid
    if context is not None and context.figures.process_figures(pid) is not None:
        dashboard.details_pid = pid
    else:
        dashboard.show_message(f"PID {pid} uses no Neuron device, so it has no details")
