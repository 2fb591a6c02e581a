"""Dispatches keys and the mouse in the dashboard, with one function for each name in the key table.

Does not depend on Textual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from neurontools.client.feed import LiveFeed
from neurontools.tui import keys, process_actions
from neurontools.tui.dashboard_state import DashboardState, OpenDialog
from neurontools.views.drawing.glyphs import Dialog
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.render_context import LAYOUTS, PLOT_METRICS, RenderContext
from neurontools.views.feed_view import CORRUPT_DATA_ERRORS, ListState
from neurontools.views.memory_sections import visible_nodes
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import PAGES, tab_pids

_INTERVALS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_WINDOWS_SECONDS = (60.0, 300.0, 900.0, 3600.0)

# General


def _show_help(dashboard: DashboardState) -> None:
    """Shows the keys, and the line with the legend below the page."""
    dashboard.settings.show("is_legend_shown", True)
    lines = keys.help_lines(dashboard.keymap.actions)
    dashboard.open_dialog = OpenDialog(Dialog("Keys", lines, hint="Up and down scroll, Esc closes"))


def _go_back(dashboard: DashboardState) -> None:
    """Clears the search of the list, else closes the details, else clears the filter, else hides the legend."""
    if dashboard.search_text and (dashboard.details_pid is None or dashboard.is_context_list):
        dashboard.search_text = ""
    elif dashboard.details_pid is not None and dashboard.details_opened_from:
        dashboard.show_page(dashboard.details_opened_from)
    elif dashboard.details_pid is not None:
        dashboard.close_details()
    elif dashboard.page == "processes" and dashboard.is_forest_shown:
        dashboard.is_forest_shown = False
    elif dashboard.page == "processes" and dashboard.filter_text:
        dashboard.filter_text = ""
    else:
        dashboard.settings.is_legend_shown = False


def _show_setup(dashboard: DashboardState) -> None:
    from neurontools.tui.dialogs import setup_dialog

    dashboard.open_dialog = setup_dialog(dashboard)


def _change_rate(dashboard: DashboardState, step: int) -> None:
    """Changes the refresh interval of a live feed, or the speed of a replay. `step` 1 is faster, -1 slower."""
    if not isinstance(dashboard.feed, LiveFeed):
        dashboard.show_message(f"replay at {dashboard.time.change_speed(step):g}x")
        return
    now = dashboard.feed.interval_seconds
    faster = [interval for interval in _INTERVALS_SECONDS if interval < now - 1e-9]
    slower = [interval for interval in _INTERVALS_SECONDS if interval > now + 1e-9]
    chosen = (faster[-1:] if step > 0 else slower[:1]) or [now]
    dashboard.time.interval_seconds = chosen[0]
    dashboard.feed.set_interval(chosen[0])
    dashboard.show_message(f"refresh every {chosen[0]:g} s, if the daemon samples that often")


# Pages and tabs


def _turn_page(dashboard: DashboardState, step: int) -> None:
    names = [page.name for page in PAGES]
    dashboard.show_page(names[(names.index(dashboard.page) + step) % len(names)])


def choose_tab_number(dashboard: DashboardState, number: int) -> None:
    """Selects the tab with this number, counted from 1. Does nothing if there are fewer tabs."""
    context = dashboard.render_context()
    if context is not None and number <= len(tab_pids(context)):
        choose_tab(dashboard, context, tab_pids(context)[number - 1])


def _turn_tab(dashboard: DashboardState, step: int) -> None:
    context = dashboard.render_context()
    if context is not None:
        pids = tab_pids(context)
        current = pids.index(dashboard.pid) if dashboard.pid in pids else 0
        choose_tab(dashboard, context, pids[(current + step) % len(pids)])


def choose_tab(dashboard: DashboardState, context: RenderContext, pid: int | None) -> None:
    """Selects the tab of a process; None selects all processes. Device pages then show the process's first device."""
    dashboard.pid = pid
    figures = context.figures.process_figures(pid)
    if figures is not None and figures.process.device_indices:
        dashboard.device_index, dashboard.core_index = figures.process.device_indices[0], None


# Overview


def _toggle_flops(dashboard: DashboardState) -> None:
    dashboard.settings.show_flops = not dashboard.settings.show_flops


def _fold_all(dashboard: DashboardState) -> None:
    """Unfolds all jobs of the page's list, or folds them if all are unfolded."""
    context = dashboard.render_context()
    rows = dashboard.rows(context) if context is not None else None
    jobs = {row.key for row in rows or () if row.rank is None}
    are_open = all(row.is_open for row in rows or () if row.rank is None)
    dashboard.unfolded = dashboard.unfolded - jobs if are_open else dashboard.unfolded | jobs


def _toggle_tree(dashboard: DashboardState) -> None:
    """Shows or hides the memory tree. On the process list, unfolds or folds all jobs."""
    if dashboard.page == "processes":
        _fold_all(dashboard)
        return
    context = dashboard.render_context()
    from neurontools.views.memory_sections import all_node_keys

    if context is None:
        return
    if dashboard.settings.layout == "classic":
        every = all_node_keys(context)
        dashboard.opened = frozenset() if dashboard.opened >= every else every
        return
    dashboard.is_tree_shown = not dashboard.is_tree_shown
    dashboard.opened = all_node_keys(context) if dashboard.is_tree_shown else frozenset()
    dashboard.lists["overview"] = ListState()
    if dashboard.is_tree_shown and dashboard.page == "overview":
        dashboard.show_message("the memory tree takes the place of the jobs and the history; x brings them back")


def _next_layout(dashboard: DashboardState) -> None:
    layout = LAYOUTS[(LAYOUTS.index(dashboard.settings.layout) + 1) % len(LAYOUTS)]
    dashboard.settings.layout = layout
    dashboard.is_tree_shown = layout == "classic"
    dashboard.lists["overview"] = ListState()
    about = {"compact": "more room for the jobs", "classic": "as AWS's neuron-top", "full": "all panels"}
    dashboard.show_message(f"layout {layout}: {about[layout]}; v shows the next one")


def _next_plot_metric(dashboard: DashboardState) -> None:
    settings = dashboard.settings
    settings.plot_metric = PLOT_METRICS[(PLOT_METRICS.index(settings.plot_metric) + 1) % len(PLOT_METRICS)]
    name = {"flops": "FLOPS", "memory": "HBM"}.get(settings.plot_metric, settings.plot_metric)
    dashboard.show_message(f"the overview plots {name}; M shows the next one")


def select_device(dashboard: DashboardState, device_index: int) -> None:
    """Moves the cursor of the overview to the first row that contains the device."""
    context = dashboard.render_context()
    if context is not None:
        devices_by_row = [row.device_indices for row in job_rows(context)]
        if dashboard.is_tree_shown:
            devices_by_row = [(node.device_index,) for node in visible_nodes(context)]
        found = [position for position, devices in enumerate(devices_by_row) if device_index in devices]
        if found:
            dashboard.move_to(found[0])


def _toggle_node(dashboard: DashboardState, *, is_open: bool | None = None) -> bool:
    """Unfolds or folds the selected tree node or job. `is_open` None toggles. Returns False if nothing changes."""
    if not dashboard.is_tree_shown:
        return _toggle_job(dashboard, is_open=is_open)
    context = dashboard.render_context()
    rows = visible_nodes(context) if context is not None else []
    if not rows:
        return False
    node = rows[min(dashboard.list.cursor, len(rows) - 1)]
    if not node.has_children or node.is_open is is_open:
        return False
    dashboard.opened = dashboard.opened - {node.key} if node.is_open else dashboard.opened | {node.key}
    return True


def _toggle_job(dashboard: DashboardState, *, is_open: bool | None) -> bool:
    row = dashboard.selected_job_row()
    if row is None or row.rank is not None or row.is_open is is_open:
        return False
    if row.is_open and row.key not in dashboard.unfolded:
        dashboard.show_message("the filter matches a part of this job, so it stays open; Esc clears the filter")
    dashboard.unfolded = dashboard.unfolded - {row.key} if row.is_open else dashboard.unfolded | {row.key}
    return True


# Moving


def _move_rows(dashboard: DashboardState, step: int) -> None:
    if dashboard.page == "topology":
        _move_device(dashboard, "up" if step < 0 else "down")
    else:
        dashboard.move_to(dashboard.list.cursor + step)


def _move_sideways(dashboard: DashboardState, step: int) -> None:
    if dashboard.page == "overview":
        is_changed = _toggle_node(dashboard, is_open=step > 0)
        if step < 0 and not is_changed:
            _move_to_parent(dashboard)
    elif dashboard.page == "topology":
        _move_device(dashboard, "left" if step < 0 else "right")
    elif dashboard.page == "history":
        _move_core(dashboard, step)
    elif dashboard.page == "processes":
        process_actions.turn_sort(dashboard, step)


def _move_to_parent(dashboard: DashboardState) -> None:
    context = dashboard.render_context()
    if context is not None and not dashboard.is_tree_shown:
        selected = dashboard.selected_job_row()
        if selected is not None:
            dashboard.move_to([row.job for row in job_rows(context)].index(selected.job))
        return
    rows = visible_nodes(context) if context is not None else []
    if rows:
        parent = rows[min(dashboard.list.cursor, len(rows) - 1)].key.rpartition("/")[0]
        found = [position for position, node in enumerate(rows) if node.key == parent]
        if found:
            dashboard.move_to(found[0])


def _move_device(dashboard: DashboardState, direction: str) -> None:
    from neurontools.views.topology_page import neighbour_in_direction

    context = dashboard.render_context()
    if context is not None:
        dashboard.device_index = neighbour_in_direction(context, dashboard.device_index, direction)


def _move_core(dashboard: DashboardState, step: int) -> None:
    context = dashboard.render_context()
    if context is None:
        return
    device = min(dashboard.device_index, len(context.snapshot.devices) - 1)
    options: list[int | None] = [None]
    options += [core.index for core in context.figures.cores if core.device_index == device]
    current = options.index(dashboard.core_index) if dashboard.core_index in options else 0
    dashboard.core_index = options[(current + step) % len(options)]


def enter(dashboard: DashboardState) -> None:
    """Handles Enter for the selected row: opens a tree node, job, process, device history, or moment of an event."""
    if dashboard.page == "overview":
        _enter_overview_row(dashboard)
    elif dashboard.page == "processes":
        _enter_process(dashboard)
    elif dashboard.page == "topology":
        dashboard.show_page("history")
    elif dashboard.page == "heatmap":
        _enter_core(dashboard)
    elif dashboard.page == "health":
        _enter_event(dashboard)


def _enter_core(dashboard: DashboardState) -> None:
    from neurontools.views.history_page import shown_cores

    context = dashboard.render_context()
    cores = shown_cores(context) if context is not None else []
    if cores:
        core = cores[min(dashboard.list.cursor, len(cores) - 1)]
        dashboard.device_index, dashboard.core_index = core.device_index, core.index
        dashboard.show_page("history")


def _enter_process(dashboard: DashboardState) -> None:
    if dashboard.details_pid is None and dashboard.is_forest_shown:
        process_actions.open_tree_row(dashboard)
        return
    row = dashboard.selected_job_row() if dashboard.details_pid is None else None
    if row is not None and row.rank is None:
        _toggle_job(dashboard, is_open=None)
    else:
        dashboard.details_pid = row.pid if row is not None else None


def _enter_overview_row(dashboard: DashboardState) -> None:
    row = dashboard.selected_job_row()
    if row is None or row.pid is None:
        _toggle_node(dashboard)
        return
    dashboard.show_page("processes")
    dashboard.selected_rows["processes"] = str(row.pid)
    dashboard.details_pid = row.pid
    dashboard.details_opened_from = "overview"


def _enter_event(dashboard: DashboardState) -> None:
    from neurontools.views.health_page import event_time_of_row

    context = dashboard.render_context()
    at = event_time_of_row(context, dashboard.list.cursor) if context is not None else None
    if at is not None:
        dashboard.time.at = at
        dashboard.time.is_playing = False


# Time


def _go_to_event(dashboard: DashboardState, step: int) -> None:
    """Moves to the next (`step` 1) or previous (-1) match of the search; if there is no search, to such an event."""
    if not dashboard.search_text:
        if not dashboard.time.to_event(step):
            dashboard.show_message("no later event" if step > 0 else "no earlier event")
        return
    shown = printable(dashboard.search_text, 80)
    if not dashboard.to_match(step):
        dashboard.show_message(f"nothing matches {shown}")
    elif dashboard.page != "processes" and (context := dashboard.render_context()) is not None:
        # The process list shows no such message, because its heading already has the number of matches.
        dashboard.show_message(f"search: {shown}, {context.match_text}")


def _go_live(dashboard: DashboardState) -> None:
    dashboard.time.go_live()
    if loading := dashboard.time.loading_text():
        dashboard.show_message(f"the recording is {loading}; the view follows its end while it loads")


def _toggle_colouring(dashboard: DashboardState) -> None:
    settings = dashboard.settings
    settings.colour_by = "memory" if settings.colour_by == "utilization" else "utilization"


def _next_window(dashboard: DashboardState) -> None:
    later = [window for window in _WINDOWS_SECONDS if window > dashboard.settings.window_seconds]
    dashboard.settings.window_seconds = later[0] if later else _WINDOWS_SECONDS[0]


ACTION_FUNCTIONS: dict[str, Callable[[DashboardState], object]] = {
    "quit": lambda dashboard: dashboard.shell.quit(),
    "suspend": lambda dashboard: dashboard.shell.suspend(),
    "show_help": _show_help,
    "show_palette": lambda dashboard: dashboard.shell.show_palette(),
    "go_back": _go_back,
    "show_setup": _show_setup,
    "next_theme": lambda dashboard: dashboard.show_message(f"theme: {dashboard.shell.next_theme()}"),
    "save_screenshot": lambda dashboard: dashboard.show_message(dashboard.shell.save_screenshot()),
    "faster": lambda dashboard: _change_rate(dashboard, 1),
    "slower": lambda dashboard: _change_rate(dashboard, -1),
    **{f"show_{page.name}": partial(DashboardState.show_page, name=page.name) for page in PAGES},
    "next_page": lambda dashboard: _turn_page(dashboard, 1),
    "previous_page": lambda dashboard: _turn_page(dashboard, -1),
    "next_tab": lambda dashboard: _turn_tab(dashboard, 1),
    "previous_tab": lambda dashboard: _turn_tab(dashboard, -1),
    "toggle_flops": _toggle_flops,
    "fold_all": _fold_all,
    "toggle_tree": _toggle_tree,
    "next_layout": _next_layout,
    "next_plot_metric": _next_plot_metric,
    "move_up": lambda dashboard: _move_rows(dashboard, -1),
    "move_down": lambda dashboard: _move_rows(dashboard, 1),
    "move_left": lambda dashboard: _move_sideways(dashboard, -1),
    "move_right": lambda dashboard: _move_sideways(dashboard, 1),
    "page_up": lambda dashboard: dashboard.move_to(dashboard.list.cursor - dashboard.list.height),
    "page_down": lambda dashboard: dashboard.move_to(dashboard.list.cursor + dashboard.list.height),
    "move_first": lambda dashboard: dashboard.move_to(0),
    "move_last": lambda dashboard: dashboard.move_to(max(0, dashboard.list.count - 1)),
    "enter": enter,
    "edit_filter": process_actions.edit_filter,
    "edit_search": process_actions.edit_search,
    "choose_sort": process_actions.choose_sort,
    "sort_left": lambda dashboard: process_actions.turn_sort(dashboard, -1),
    "sort_right": lambda dashboard: process_actions.turn_sort(dashboard, 1),
    "invert_sort": process_actions.invert_sort,
    "tag_process": process_actions.tag_process,
    "untag_all": process_actions.untag_all,
    "choose_signal": process_actions.choose_signal,
    "toggle_forest": process_actions.toggle_forest,
    "toggle_time": process_actions.toggle_time,
    "toggle_surroundings": process_actions.toggle_process_context,
    "toggle_pause": lambda dashboard: dashboard.time.toggle_pause(),
    "step_back": lambda dashboard: dashboard.time.step(-1),
    "step_forward": lambda dashboard: dashboard.time.step(1),
    "leap_back": lambda dashboard: dashboard.time.leap(-60.0),
    "leap_forward": lambda dashboard: dashboard.time.leap(60.0),
    "next_event": lambda dashboard: _go_to_event(dashboard, 1),
    "previous_event": lambda dashboard: _go_to_event(dashboard, -1),
    "go_live": _go_live,
    "toggle_recording": lambda dashboard: dashboard.show_message(dashboard.shell.toggle_recording()),
    "toggle_colouring": _toggle_colouring,
    "next_window": _next_window,
}
"""Functions by the `name` of their KeyAction. Omits `choose_tab`, whose function needs the pressed key."""


class Dashboard(DashboardState):
    """Dashboard of one host, which handles keys, clicks, drags and the mouse wheel."""

    _dragged = ""  # the action of the dragged target: "scroll" or "scrub"

    def press(self, key: str, character: str | None = None) -> bool:
        if key in keys.ALWAYS:
            return self.act(keys.BY_KEY[key], key)
        if self.open_dialog is not None:
            return self._choose(self.open_dialog, key)
        if self.edited_filter is not None:
            return self._edit_filter(key, character)
        if self.edited_search is not None:
            return self._edit_search(key, character)
        action = self.keymap.by_key.get(key)
        return action is not None and self.act(action, key)

    def act(self, action: keys.KeyAction, key: str = "") -> bool:
        """Runs an action; `key` is the key that was pressed. Always returns True, which marks the key as handled."""
        self.forget_message()
        try:
            if action.name == "choose_tab":
                choose_tab_number(self, int(key))
            else:
                ACTION_FUNCTIONS[action.name](self)
        except CORRUPT_DATA_ERRORS as error:
            self.show_message(f"this can't be done at this moment: {error}")
        return True

    def _choose(self, choices: OpenDialog, key: str) -> bool:
        self.open_dialog = None  # closes the dialog even if its callback raises an error
        self.open_dialog = choices.press(key)
        return True

    def click(self, column: int, row: int) -> bool:
        try:
            return self._click(column, row)
        except CORRUPT_DATA_ERRORS as error:
            self.show_message(f"this can't be done at this moment: {error}")
            return True

    def _click(self, column: int, row: int) -> bool:
        target = self.drawn.target_at(column, row)
        if target is None:
            return False
        action, argument = target.action, target.argument
        if self.open_dialog is not None:
            if action == "option":
                self.open_dialog.move_to(int(argument))
                return self._choose(self.open_dialog, "enter")
            return False
        if action == "key":  # `argument` is the default key of an action, even if the user has changed that key
            return (
                self.edited_filter is None and self.edited_search is None and self.act(keys.BY_KEY[argument], argument)
            )
        if action == "page":
            self.show_page(argument)
        elif action == "tab":
            context = self.render_context()
            if context is not None:
                choose_tab(self, context, int(argument) if argument else None)
        elif action == "sort":
            process_actions.sort_by(self, argument)
        elif action == "scrub":
            self.time.seek(float(argument))
        elif action == "scroll":
            self.scroll_to(int(argument))
        elif action == "device":
            self.device_index, self.core_index = int(argument), None
            if self.page == "overview":
                select_device(self, int(argument))
        elif action == "core":
            self.core_index = int(argument)
        elif action == "row":
            was = self.list.cursor
            self.move_to(int(argument))
            if was == self.list.cursor and self.page in ("overview", "processes"):
                enter(self)
        return True

    def grab(self, column: int, row: int) -> bool:
        """Begins to drag the scroll bar or the scrubber. Returns False if neither is at this cell."""
        target = self.drawn.target_at(column, row)
        if target is None or target.action not in ("scroll", "scrub") or self.open_dialog is not None:
            return False
        self._dragged = target.action
        return self.click(column, row)

    def drag(self, column: int, row: int) -> None:
        target = self.drawn.nearest_target(self._dragged, column, row)
        if target is not None:
            self.click(target.left, target.row)

    def scroll_to(self, top: int) -> None:
        """Makes this row the first visible one of the list, and moves the cursor into the visible part."""
        where = self.list
        where.top = top
        self.move_to(min(max(where.cursor, top), top + where.height - 1))

    def scroll(self, lines: int) -> None:
        """Scrolls the open dialog; without a dialog, moves the cursor of the list."""
        if self.open_dialog is not None:
            self.open_dialog.move(lines)
        else:
            self.move_to(self.list.cursor + lines)

    def _edit_filter(self, key: str, character: str | None) -> bool:
        text = self.edited_filter or ""
        if key == "enter":
            self.filter_text, self.edited_filter = text.strip(), None
        elif key == "escape":
            self.filter_text, self.edited_filter = "", None
        elif key in ("up", "down"):
            self.move_to(self.list.cursor + (1 if key == "down" else -1))
        else:
            edited = keys.edited_text(text, key, character)
            self.edited_filter = text if edited is None else edited
            return edited is not None
        return True

    def _edit_search(self, key: str, character: str | None) -> bool:
        """Handles a key while the user types a search. Each edit searches anew from the row selected at the start."""
        text = self.edited_search or ""
        if key == "enter":
            self.search_text, self.edited_search = text.strip(), None
        elif key == "escape":
            self.search_text, self.edited_search = "", None
        elif key in ("up", "down"):
            self.to_match(1 if key == "down" else -1)
        else:
            edited = keys.edited_text(text, key, character)
            if edited is None:
                return False
            self.edited_search = edited
            self.go_to(self.search_start)
            self.to_match(0)
        return True
