"""What a daemon owes those who started it: word that it serves, and not to outlive them when they ask for that."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys

from neurontools.util.signals import set_parent_death_signal


def notify_ready(ready_fd: int | None) -> bool:
    """Says that the daemon serves: a line to `ready_fd`, and READY=1 to systemd where it started us.

    False when who wanted to read that line is gone.
    """
    is_heard = True
    if ready_fd is not None:
        try:
            os.write(ready_fd, b"ready\n")
        except BrokenPipeError:
            is_heard = False
        except OSError:
            pass
        with contextlib.suppress(OSError):
            os.close(ready_fd)
    notify("READY=1")
    return is_heard


def notify(state: str) -> None:
    """Tells systemd, where it started us (sd_notify(3)); one that doesn't listen is no trouble of ours."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_seconds() -> float | None:
    """How often systemd wants to hear of this process, with time to spare; None where it doesn't wait for that."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdigit() and len(microseconds) <= 16) or int(microseconds) == 0:
        return None
    return int(microseconds) / 2e6 if pid in ("", str(os.getpid())) else None


def has_terminal() -> bool:
    """Whether a terminal controls this process: then SIGHUP says that it is gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def most_files() -> int:
    """How many files this process may have open, raised to the highest the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def exit_with_parent(parent_pid: int) -> None:
    """Has the kernel send SIGTERM when the parent ends; ends at once if it has ended already."""
    if not set_parent_death_signal(parent_pid, signal.SIGTERM):
        raise SystemExit(0)
