"""What the operating system knows of the attached processes."""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Iterable
from dataclasses import dataclass, replace

import psutil

from neurond.system.steady_clock import SteadyClock
from neurontools.driver.processes import ProcessFiles, read_boot_time
from neurontools.model import Job, Process

MAX_COMMAND_CHARACTERS = 4096
_SAME_START_SECONDS = 2.0  # the clock may have been set a little since
_UNREADABLE = (psutil.Error, OSError)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process; None where the operating system doesn't tell, "" for a command line that can't be read."""

    user: str | None = None
    command: str = ""
    started_at_unix_seconds: float | None = None
    resident_bytes: int | None = None
    cpu_user_seconds_total: float | None = None
    cpu_system_seconds_total: float | None = None
    job: Job | None = None

    def within(self, job: Job | None) -> ProcessFacts:
        """The same of a process that is part of a job."""
        return self if job is None else replace(self, job=job)


class ProcessTable:
    """Facts about processes by PID. What never changes is read once, what changes at each `refresh`.

    A PID that another process has got since is noticed by its start time.
    """

    def __init__(self, clock: SteadyClock | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._processes: dict[int, psutil.Process | None] = {}
        self._facts: dict[int, ProcessFacts] = {}
        self._checked_at_unix_seconds: dict[int, float] = {}

    def refresh(self, pids: Iterable[int]) -> None:
        """Reads the changing facts of these processes again and forgets all others."""
        wanted = set(pids)
        for pid in self._facts.keys() - wanted:
            del self._facts[pid], self._processes[pid], self._checked_at_unix_seconds[pid]
        for pid in wanted:
            self._check(pid)

    def facts(self, pid: int, seen_at_unix_seconds: float = 0.0) -> ProcessFacts:
        """What is known of a process that was seen at this time; where nothing is as new as that, it is read now."""
        if pid not in self._facts or seen_at_unix_seconds > self._checked_at_unix_seconds[pid]:
            self._check(pid)
        return self._facts[pid]

    def last_facts(self, pid: int) -> ProcessFacts:
        """What is known of a process that may have ended."""
        return self._facts.get(pid) or ProcessFacts()

    def _check(self, pid: int) -> None:
        self._checked_at_unix_seconds[pid] = self._clock.now()
        known, process = self._facts.get(pid), self._processes.get(pid)
        if known is None or process is None:  # new, or it couldn't be read the last time
            self._facts[pid] = self._identified(pid)
            return
        with contextlib.suppress(*_UNREADABLE):  # out of descriptors: what was known stays
            if process.is_running():
                self._facts[pid] = self._measured(process, known)
            elif psutil.pid_exists(pid):  # another process has the PID now
                self._facts[pid] = self._identified(pid)

    def _identified(self, pid: int) -> ProcessFacts:
        try:
            process = self._processes[pid] = psutil.Process(pid)
        except _UNREADABLE:
            self._processes[pid] = None
            return ProcessFacts()
        user = command = started = None
        with contextlib.suppress(*_UNREADABLE), process.oneshot():
            started = process.create_time() - self._clock.moved_seconds()
            user = _text(process.username())
            command = _text(" ".join(process.cmdline()))[:MAX_COMMAND_CHARACTERS]
        return self._measured(process, ProcessFacts(user, command or "", started))

    def _measured(self, process: psutil.Process, facts: ProcessFacts) -> ProcessFacts:
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except _UNREADABLE:
            return facts
        return ProcessFacts(
            facts.user, facts.command, facts.started_at_unix_seconds, memory.rss, times.user, times.system
        )


def is_alive(proc: str, process: Process) -> bool:
    """Whether there is still a process of this PID that began when this one did; `proc`: where /proc is."""
    times = ProcessFiles(proc, process.pid).times()
    if times is None or process.started_at_unix_seconds is None:
        return times is not None
    boot = read_boot_time(proc)
    started = process.started_at_unix_seconds
    return boot is None or abs(boot + times.started_after_boot_seconds - started) < _SAME_START_SECONDS


def user_name(uid: int) -> str | None:
    """The name of a user; None where there is none."""
    try:
        return _text(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return None


def _text(raw: str) -> str:
    """Text that can be sent as UTF-8: bytes that were none, which may stand in any command line, become U+FFFD."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
