"""The end of the daemon: what asks for it, and the time that others get."""

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
    """Lets all other tasks end by themselves: those of grpcio print a traceback when the loop's end cancels them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=patience_seconds)


def termination_event(*, by_hang_up: bool) -> asyncio.Event:
    """Set by SIGTERM and SIGINT, and where that is meant by SIGHUP, unless nohup had it ignored."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or (by_hang_up and signal.getsignal(number) is not signal.SIG_IGN):
            loop.add_signal_handler(number, ending.set)
    return ending


class LoopTurns:
    """The turns of an event loop, by the CPU time of its thread. A turn is all that runs between two looks at files.

    Each costs a microsecond to time. `longest_cpu_seconds` is None while none was timed.
    """

    def __init__(self) -> None:
        self.longest_cpu_seconds: float | None = None
        self._began_seconds = 0.0

    def begin(self) -> None:
        """The loop begins to serve: how long it took to come so far doesn't count."""
        self.longest_cpu_seconds = 0.0
        self._began_seconds = time.thread_time()

    def end_turn(self) -> None:
        """All that was ready has run."""
        longest_seconds = self.longest_cpu_seconds
        if longest_seconds is not None:
            self.longest_cpu_seconds = max(longest_seconds, time.thread_time() - self._began_seconds)

    def begin_turn(self) -> None:
        """Something is ready."""
        self._began_seconds = time.thread_time()


turns = LoopTurns()
"""Those of this process's event loop."""


class _TimedSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        turns.end_turn()
        ready = super().select(timeout)
        turns.begin_turn()
        return ready


def timed_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose turns are timed."""
    return asyncio.SelectorEventLoop(_TimedSelector())


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
    notify_systemd("READY=1")
    return is_heard


def notify_systemd(state: str) -> None:
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


def raise_file_limit() -> int:
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


_FORMAT = "neurond: %(levelname)s: %(message)s"
_PRIORITIES = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # of syslog(3)
_STDERR = 2


def configure_logging(level: str) -> None:
    """From here on, what is logged at this level (error, warning, info, debug) or above goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JournalFormatter("%(message)s") if is_journal() else VisibleFormatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_log_level(level: str) -> None:
    """From here on this level holds."""
    logging.getLogger().setLevel(level.upper())


def is_journal() -> bool:
    """Whether standard error goes to systemd's journal (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class VisibleFormatter(logging.Formatter):
    """A record is one line, whatever commands, paths and replies are in its text; a traceback follows in its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line."""
        return escape_controls(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """The lines of the traceback."""
        return "\n".join(map(escape_controls, super().formatException(ei).split("\n")))


class JournalFormatter(VisibleFormatter):
    """The same with a priority before each line (sd-daemon(3)); the journal knows whose lines they are."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines."""
        priority = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join(priority + line for line in super().format(record).split("\n"))
