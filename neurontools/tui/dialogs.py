"""Dialogs of the dashboard, for settings and for sending signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from neurontools.client.feed import FeedState
from neurontools.model import Process
from neurontools.tui.dashboard_state import OpenDialog
from neurontools.util.process_text import script_text
from neurontools.util.units import ranges_text
from neurontools.views.drawing.glyphs import Dialog
from neurontools.views.drawing.lines import THEMES, clip, printable
from neurontools.views.drawing.render_context import OVERVIEW_PANELS
from neurontools.views.process_table import BY_KEY, COMMAND, EVERY_COLUMN
from neurontools.views.screen import PAGES

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState
    from neurontools.views.dashboard_settings import DashboardSettings


_ORDER_HINT = "Space show or hide, < > move, 0 as usual, Esc back"


def column_text(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) if columns else "those that there is room for"


def column_dialog(dashboard: DashboardState) -> OpenDialog:
    """Returns the dialog for the columns of the process list."""
    shown = dashboard.settings.columns or tuple(column.key for column in EVERY_COLUMN if column.offered)
    if COMMAND.key in shown:  # the command column is always last, because it takes the remaining width
        shown = (*(key for key in shown if key != COMMAND.key), COMMAND.key)
    texts = {column.key: f"{column.title:<9} {column.about}" for column in EVERY_COLUMN}
    return _order_dialog(
        "Columns", texts, shown, partial(setattr, dashboard.settings, "columns"), column_dialog, dashboard
    )


_PANEL_TEXTS = {
    "cores": "cores     NeuronCores by device, with HBM",
    "jobs": "jobs      jobs and processes",
    "history": "history   plots; the layout full has them",
    "vcpus": "vcpus     vCPUs, network, disks, power",
    "memory": "memory    host and device memory by category",
}


def panel_dialog(dashboard: DashboardState) -> OpenDialog:
    """Returns the dialog for the panels of the overview. Findings always come first."""
    shown = dashboard.settings.panels or OVERVIEW_PANELS
    choose = partial(setattr, dashboard.settings, "panels")
    return _order_dialog("Panels", _PANEL_TEXTS, shown, choose, panel_dialog, dashboard)


def _order_dialog(
    title: str,
    texts: Mapping[str, str],
    shown: tuple[str, ...],
    choose: Callable[[tuple[str, ...]], None],
    make: Callable[[DashboardState], OpenDialog],
    dashboard: DashboardState,
) -> OpenDialog:
    """Returns a dialog that shows, hides and moves entries: shown ones in their order, then hidden ones.

    `texts` has the text of each entry by its key. `choose` stores the keys of the shown entries; () is the default.
    `make` makes the dialog again after a change.
    """
    keys = [*dict.fromkeys(shown), *(key for key in texts if key not in shown)]
    count = len(set(shown))

    def store(chosen: Sequence[str], key: str) -> OpenDialog:
        choose(tuple(chosen))
        again = make(dashboard).with_back(opened.back)
        options = again.dialog.options
        again.move_to(next((at for at, text in enumerate(options) if text.endswith(texts[key])), 0))
        return again

    def toggle(number: int) -> OpenDialog:
        key = keys[number]
        changed = [each for each in keys[:count] if each != key] if number < count else [*keys[:count], key]
        return store(changed or keys[:count], key)  # keeps the entries if none would be left

    def mover(step: int) -> Callable[[int], OpenDialog]:
        def move(number: int) -> OpenDialog:
            moved, target = keys[:count], number + step
            if number < count and 0 <= target < count:
                moved[number], moved[target] = moved[target], moved[number]
                return store(moved, keys[number])
            return opened

        return move

    options = tuple(f"[{'x' if number < count else ' '}] {texts[key]}" for number, key in enumerate(keys))
    more = {"space": toggle, "less_than_sign": mover(-1), "greater_than_sign": mover(1)}
    more |= {"left": more["less_than_sign"], "right": more["greater_than_sign"]}
    more["0"] = lambda number: store((), keys[number])
    opened = OpenDialog(Dialog(title, options=options, hint=_ORDER_HINT), toggle, more)
    return opened


_DEVICE_HINT = "Space show or hide, o only this one, 0 all, Esc back"


def device_text(dashboard: DashboardState) -> str:
    return f"all but {ranges_text(dashboard.hidden_devices)}" if dashboard.hidden_devices else "all"


def device_dialog(dashboard: DashboardState, cursor: int = 0) -> OpenDialog:
    index = dashboard.time.index
    snapshot = dashboard.feed.timeline.snapshot(index) if index is not None else None
    # Omits devices that --device excludes, because they cannot be shown.
    devices = () if snapshot is None else dashboard.device_filter.filter_snapshot(snapshot).devices
    indices = [device.index for device in devices]

    def show(hidden: frozenset[int], number: int) -> OpenDialog:
        if len(hidden) < len(indices):  # at least one device must stay visible
            dashboard.hide_devices(hidden)
        return device_dialog(dashboard, number).with_back(opened.back)

    def toggle(number: int) -> OpenDialog:
        return show(dashboard.hidden_devices ^ {indices[number]}, number)

    def alone(number: int) -> OpenDialog:
        return show(frozenset(indices) - {indices[number]}, number)

    options = tuple(f"[{' ' if index in dashboard.hidden_devices else 'x'}] ND {index}" for index in indices)
    more = {"space": toggle, "o": alone, "0": lambda number: show(frozenset(), number)} if indices else {}
    opened = OpenDialog(Dialog("Devices", options=options, cursor=cursor, hint=_DEVICE_HINT), toggle, more)
    return opened


_MENU_HINT = "Enter choose, Esc close; devices are not saved"


def setup_dialog(dashboard: DashboardState, cursor: int = 0) -> OpenDialog:
    settings = dashboard.settings
    entries = (
        ("columns", column_text(settings.columns), column_dialog),
        ("panels", ", ".join(settings.panels) or "all", panel_dialog),
        ("sort by", sort_order_text(settings), sort_dialog),
        ("theme", settings.theme, theme_dialog),
        ("page to begin with", settings.start_page or "the last one", first_page_dialog),
        ("devices", device_text(dashboard), device_dialog),
        ("idle below", f"{settings.idle_below_percent:g} % busy", idle_threshold_dialog),
        ("late after", f"{settings.late_after_seconds:g} s without an execution", late_threshold_dialog),
    )

    def chosen(number: int) -> OpenDialog:
        return entries[number][2](dashboard).with_back(lambda: setup_dialog(dashboard, number))

    options = tuple(f"{name:<20} {text}" for name, text, _ in entries)
    return OpenDialog(Dialog("Setup", options=options, cursor=cursor, hint=_MENU_HINT), chosen)


_SORT_HINT = "Enter first, Space second, again to reverse; Esc back"


def sort_order_text(settings: DashboardSettings) -> str:
    orders = [(settings.sort, settings.is_descending), (settings.then_sort, settings.is_then_descending)]
    return ", then ".join(f"{key}{', largest first' if down else ''}" for key, down in orders if key in BY_KEY)


def sort_dialog(dashboard: DashboardState, at: str = "") -> OpenDialog:
    """Returns the dialog for the sort column. The cursor is at column `at`, or at the sort column if `at` is ""."""
    settings, glyphs = dashboard.settings, dashboard.glyphs
    names = [column.key for column in EVERY_COLUMN]

    def mark(key: str) -> str:
        for number, name, is_descending in (
            (1, settings.sort, settings.is_descending),
            (2, settings.then_sort, settings.is_then_descending),
        ):
            if key == name:
                return f"{number}{glyphs.descending if is_descending else glyphs.ascending}"
        return "  "

    def again(number: int) -> OpenDialog:
        return sort_dialog(dashboard, names[number]).with_back(opened.back)

    def first(number: int) -> OpenDialog | None:
        settings.sort_by(names[number])
        return again(number) if opened.back is not None else None

    def second(number: int) -> OpenDialog:
        settings.then_sort_by(names[number])
        return again(number)

    options = tuple(f"{mark(column.key)} {column.title:<9} {column.about}" for column in EVERY_COLUMN)
    cursor = names.index(at or settings.sort) if (at or settings.sort) in names else 0
    opened = OpenDialog(Dialog("Sort by", options=options, cursor=cursor, hint=_SORT_HINT), first, {"space": second})
    return opened


T = TypeVar("T")

_IDLE_PERCENT = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
_LATE_SECONDS = (5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_VALUE_HINT = "Enter choose, Esc back"


def theme_dialog(dashboard: DashboardState) -> OpenDialog:
    """Returns the dialog for the theme. A chosen theme applies immediately."""
    names = ["auto", *THEMES]
    return _value_dialog("Theme", names, dashboard.settings.theme, names, dashboard.shell.set_theme)


def first_page_dialog(dashboard: DashboardState) -> OpenDialog:
    names = ["", *(page.name for page in PAGES)]
    texts = ["the one looked at last", *(f"{page.name:<10} {page.title}" for page in PAGES)]
    settings = dashboard.settings
    choose = partial(setattr, settings, "start_page")
    return _value_dialog("Page to begin with", names, settings.start_page, texts, choose)


def idle_threshold_dialog(dashboard: DashboardState) -> OpenDialog:
    """Returns the dialog for the idle threshold: a held core with a lower utilization counts as idle."""
    settings, texts = dashboard.settings, [f"below {percent:g} %" for percent in _IDLE_PERCENT]
    choose = partial(setattr, settings, "idle_below_percent")
    return _value_dialog("A held core is idle", _IDLE_PERCENT, settings.idle_below_percent, texts, choose)


def late_threshold_dialog(dashboard: DashboardState) -> OpenDialog:
    """Returns the dialog for the seconds without an execution after which a process is marked late."""
    settings, texts = dashboard.settings, [f"after {seconds:g} s" for seconds in _LATE_SECONDS]
    choose = partial(setattr, settings, "late_after_seconds")
    return _value_dialog("No execution is late", _LATE_SECONDS, settings.late_after_seconds, texts, choose)


def _value_dialog(
    title: str, values: Sequence[T], now: T, texts: Sequence[str], choose: Callable[[T], None]
) -> OpenDialog:
    def chosen(number: int) -> OpenDialog | None:
        choose(values[number])
        return None if opened.back is None else opened.back()

    cursor = values.index(now) if now in values else 0
    options = tuple(f"({'x' if value == now else ' '}) {text}" for value, text in zip(values, texts, strict=True))
    opened = OpenDialog(Dialog(title, options=options, cursor=cursor, hint=_VALUE_HINT), chosen)
    return opened


SIGNALS = (
    ("SIGTERM", "end, as kill does"),
    ("SIGINT", "interrupt, as Ctrl-C does"),
    ("SIGHUP", "hang up"),
    ("SIGUSR1", "user-defined 1"),
    ("SIGUSR2", "user-defined 2"),
    ("SIGSTOP", "stop until SIGCONT"),
    ("SIGCONT", "go on after SIGSTOP"),
    ("SIGQUIT", "quit with a core dump"),
    ("SIGKILL", "kill at once; nothing is saved"),
)
_START_TOLERANCE_SECONDS = 2.0


def send_signal(process: Process, name: str) -> str:
    """Sends the signal `name`, such as SIGTERM, to a process. Returns the outcome as text."""
    if process.synthetic:
        return f"PID {process.pid} is synthetic: there is no such process"
    try:
        with contextlib.ExitStack() as stack:
            handle = os.pidfd_open(process.pid)
            stack.callback(os.close, handle)
            # The pidfd always refers to the same process. The start time shows whether the PID had already been reused.
            started = _started_at_unix_seconds(process.pid)
            expected = process.started_at_unix_seconds
            if started is not None and expected is not None and abs(started - expected) > _START_TOLERANCE_SECONDS:
                return f"PID {process.pid} is another process by now; nothing was sent"
            signal.pidfd_send_signal(handle, signal.Signals[name])
    except ProcessLookupError:
        return f"PID {process.pid} has ended"
    except PermissionError:
        return f"PID {process.pid}: not permitted; it belongs to {process.user or 'another user'}"
    except OSError as error:
        return f"PID {process.pid}: {error.strerror}"
    return f"{name} sent to PID {process.pid}"


def _started_at_unix_seconds(pid: int) -> float | None:
    """Returns the start time of a process in Unix seconds, from /proc; None if unreadable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        with Path("/proc/stat").open(encoding="utf-8") as stat:
            boot = next(int(line.split()[1]) for line in stat if line.startswith("btime "))
        return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


_SCRIPT_CELLS = 60
_MOST_NAMED = 8


def signal_dialog(dashboard: DashboardState) -> OpenDialog | None:
    """Returns the dialog to send a signal. If signals cannot be sent now, shows a message and returns None."""
    targets = _signal_targets(dashboard)
    if dashboard.is_read_only:
        dashboard.show_message("--read-only: no signals are sent")
        return None
    if not dashboard.feed.is_live or dashboard.feed.status.link is not FeedState.LIVE:
        dashboard.show_message("signals can be sent only while the daemon's live data is there")
        return None
    if not targets:
        dashboard.show_message("no process is selected")
        return None

    def ask(number: int) -> OpenDialog:
        return _confirmation_dialog(dashboard, SIGNALS[number][0], targets)

    options = tuple(f"{name:<8} {text}" for name, text in SIGNALS)
    return OpenDialog(Dialog("Send a signal", _target_lines(targets), options), ask)


def _signal_targets(dashboard: DashboardState) -> list[Process]:
    """Returns the processes to signal, if still running: tagged processes, else those of the selected row or tab."""
    moments = dashboard.feed.timeline.moments
    if not moments:
        return []
    latest = {process.pid: process for process in moments[-1].snapshot().processes}
    pids = sorted(dashboard.tagged)
    if not pids:
        chosen = dashboard.details_pid or (dashboard.selected_pid if dashboard.page == "processes" else dashboard.pid)
        pids = [chosen] if chosen is not None else list(dashboard.pids_of_row())
    return [latest[pid] for pid in pids if pid in latest]


def _target_lines(targets: list[Process]) -> tuple[str, ...]:
    more = len(targets) - _MOST_NAMED
    named = tuple(
        f"PID {process.pid}  {printable(process.user or '-', 20)}  {printable(process.tag, 30)}  "
        f"{clip(script_text(printable(process.command)), _SCRIPT_CELLS, mark=True)}"
        for process in targets[:_MOST_NAMED]
    )
    return (*named, f"and {more} more") if more > 0 else named


def _confirmation_dialog(dashboard: DashboardState, name: str, targets: list[Process]) -> OpenDialog:
    def decide(number: int) -> None:
        if number == 1:
            dashboard.show_message("; ".join(send_signal(process, name) for process in targets))

    subject = f"{len(targets)} processes" if len(targets) > 1 else f"PID {targets[0].pid}"
    options = ("No, do nothing", f"Yes, send {name}")
    return OpenDialog(Dialog(f"Send {name} to {subject}?", _target_lines(targets), options), decide)
