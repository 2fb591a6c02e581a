"""Sending a signal to processes, sure that each is still the one that was looked at."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from neurontools.model import Process

CHOICES = (
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


def send(process: Process, name: str) -> str:
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
