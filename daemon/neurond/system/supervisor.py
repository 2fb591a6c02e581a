"""What a daemon owes those who started it: word that it serves, and not to outlive them when they ask for that."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys

from neurontools.lifetime import end_with_parent


def notify_ready(ready_fd: int | None) -> None:
    """Says that the daemon serves: a line to `ready_fd`, and READY=1 to systemd where it started us."""
    if ready_fd is not None:
        with contextlib.suppress(OSError):
            os.write(ready_fd, b"ready\n")
            os.close(ready_fd)
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def most_files() -> int:
    """How many files this process may have open, raised to the highest the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def exit_with_parent(parent_pid: int) -> None:
    """Has the kernel send SIGTERM when the parent ends; ends at once if it has ended already."""
    if not end_with_parent(parent_pid, signal.SIGTERM):
        raise SystemExit(0)
