"""Signals, service manager, event loop timing and log format of the daemon's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from types import TracebackType
from typing import Any

from neurontools.util.signals import set_parent_death_signal
from neurontools.util.terminal import escape_controls


async def finish_other_tasks(patience_seconds: float) -> None:
    """Waits until all other tasks end, because grpcio's tasks print a traceback when the loop cancels them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=patience_seconds)


def termination_event(*, by_hang_up: bool) -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set. With `by_hang_up`, SIGHUP sets it too, except under nohup."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or (by_hang_up and signal.getsignal(number) is not signal.SIG_IGN):
            loop.add_signal_handler(number, ending.set)
    return ending


class LoopTurns:
    """Measures the CPU time of event loop iterations. Measuring costs one microsecond per iteration.

    `longest_cpu_seconds` is the longest iteration since `begin`; None before `begin`.
    """

    def __init__(self) -> None:
        self.longest_cpu_seconds: float | None = None
        self._began_seconds = 0.0

    def begin(self) -> None:
        """Starts measuring. Called after the daemon's start, whose iterations do not count."""
        self.longest_cpu_seconds = 0.0
        self._began_seconds = time.thread_time()

    def end_turn(self) -> None:
        longest_seconds = self.longest_cpu_seconds
        if longest_seconds is not None:
            self.longest_cpu_seconds = max(longest_seconds, time.thread_time() - self._began_seconds)

    def begin_turn(self) -> None:
        self._began_seconds = time.thread_time()


turns = LoopTurns()
"""The iterations of this process's event loop."""


class _TimedSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        turns.end_turn()
        ready = super().select(timeout)
        turns.begin_turn()
        return ready


def timed_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop that measures the CPU time of its iterations in `turns`."""
    return asyncio.SelectorEventLoop(_TimedSelector())


def notify_ready(ready_fd: int | None) -> bool:
    """Writes the line "ready" to `ready_fd` and sends READY=1 to systemd.

    Returns False if `ready_fd` is a pipe whose reader has closed it.
    """
    has_reader = True
    if ready_fd is not None:
        try:
            os.write(ready_fd, b"ready\n")
        except BrokenPipeError:
            has_reader = False
        except OSError:
            pass
        with contextlib.suppress(OSError):
            os.close(ready_fd)
    notify_systemd("READY=1")
    return has_reader


def notify_systemd(state: str) -> None:
    """Sends a state to systemd if systemd started this process (sd_notify(3)). Ignores errors."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_seconds() -> float | None:
    """Returns the seconds between watchdog messages: half of systemd's limit. None without a watchdog."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdigit() and len(microseconds) <= 16) or int(microseconds) == 0:
        return None
    return int(microseconds) / 2e6 if pid in ("", str(os.getpid())) else None


def has_terminal() -> bool:
    """Returns whether this process has a controlling terminal. SIGHUP then means that the terminal has closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard limit, and returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def exit_with_parent(parent_pid: int) -> None:
    """Makes the kernel send SIGTERM when the parent process ends. Exits if the parent has already ended."""
    if not set_parent_death_signal(parent_pid, signal.SIGTERM):
        raise SystemExit(0)


_FORMAT = "neurond: %(levelname)s: %(message)s"
_PRIORITIES = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # of syslog(3)
_STDERR = 2


def configure_logging(level: str) -> None:
    """Logs records of this level (error, warning, info or debug) and above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JournalFormatter("%(message)s") if is_journal() else VisibleFormatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def is_journal() -> bool:
    """Returns whether standard error goes to systemd's journal (JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class VisibleFormatter(logging.Formatter):
    """Formats a log record as one line with escaped control characters. A traceback adds lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escape_controls(super().formatMessage(record))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "\n".join(map(escape_controls, super().formatException(ei).split("\n")))


class JournalFormatter(VisibleFormatter):
    """Adds a syslog priority to each line (sd-daemon(3)), for the journal."""

    def format(self, record: logging.LogRecord) -> str:
        priority = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join(priority + line for line in super().format(record).split("\n"))
