"""Sending a signal to processes, sure that each is still the one that was looked at."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.client.feed import FeedState
from neurontools.model import Process
from neurontools.tui.dashboard_state import OpenDialog
from neurontools.util.process_text import script_text
from neurontools.views.drawing.glyphs import Dialog
from neurontools.views.drawing.lines import clip, printable

if TYPE_CHECKING:
    from neurontools.tui.dashboard_state import DashboardState


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
    """Send the signal of this name; what came of it, in words."""
    if process.synthetic:
        return f"PID {process.pid} is synthetic: there is no such process"
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return f"PID {process.pid} has ended"
    except OSError as error:
        return f"PID {process.pid}: {error.strerror}"
    try:
        # The handle pins the process; now its start tells whether it is the one on the screen.
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
    finally:
        os.close(handle)
    return f"{name} sent to PID {process.pid}"


def _started_at_unix_seconds(pid: int) -> float | None:
    """When a process started, by /proc."""
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
    """The menu, or None when no signal can be sent now, which is told."""
    targets = _signal_targets(dashboard)
    if dashboard.is_read_only:
        dashboard.tell("--read-only: no signals are sent")
        return None
    if not dashboard.feed.is_live or dashboard.feed.status.link is not FeedState.LIVE:
        dashboard.tell("signals can be sent only while the daemon's live data is there")
        return None
    if not targets:
        dashboard.tell("no process is selected")
        return None

    def ask(number: int) -> OpenDialog:
        return _confirmation_dialog(dashboard, SIGNALS[number][0], targets)

    options = tuple(f"{name:<8} {text}" for name, text in SIGNALS)
    return OpenDialog(Dialog("Send a signal", _target_lines(targets), options), ask)


def _signal_targets(dashboard: DashboardState) -> list[Process]:
    """The tagged processes that are still there, else the selected one or job, else that of the tab; as of now."""
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
            dashboard.tell("; ".join(send_signal(process, name) for process in targets))

    who = f"{len(targets)} processes" if len(targets) > 1 else f"PID {targets[0].pid}"
    options = ("No, do nothing", f"Yes, send {name}")
    return OpenDialog(Dialog(f"Send {name} to {who}?", _target_lines(targets), options), decide)
