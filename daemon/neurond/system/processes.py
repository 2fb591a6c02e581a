"""What the operating system knows of the attached processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

MAX_COMMAND_CHARACTERS = 4096
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


class ProcessTable:
    """Facts about processes by PID. What never changes is read once, what changes at each `refresh`."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process | None] = {}
        self._facts: dict[int, ProcessFacts] = {}

    def refresh(self, pids: Iterable[int]) -> None:
        """Reads the changing facts of these processes again and forgets all others."""
        wanted = set(pids)
        for pid in self._facts.keys() - wanted:
            del self._facts[pid], self._processes[pid]
        for pid in wanted:
            known = self._facts.get(pid)
            if known is None or self._processes[pid] is None:  # new, or it couldn't be read the last time
                self._facts[pid] = self._identified(pid)
            else:
                self._facts[pid] = self._measured(pid, known)

    def facts(self, pid: int) -> ProcessFacts:
        """What is known of a process; one that is seen for the first time is read now."""
        known = self._facts.get(pid)
        if known is None:
            known = self._facts[pid] = self._identified(pid)
        return known

    def _identified(self, pid: int) -> ProcessFacts:
        try:
            process = self._processes[pid] = psutil.Process(pid)
        except _UNREADABLE:
            self._processes[pid] = None
            return ProcessFacts()
        user = command = started = None
        with contextlib.suppress(*_UNREADABLE), process.oneshot():
            started = process.create_time()
            user = _text(process.username())
            command = _text(" ".join(process.cmdline()))[:MAX_COMMAND_CHARACTERS]
        return self._measured(pid, ProcessFacts(user, command or "", started))

    def _measured(self, pid: int, facts: ProcessFacts) -> ProcessFacts:
        process = self._processes.get(pid)
        if process is None:
            return facts
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except _UNREADABLE:
            return facts
        return ProcessFacts(
            facts.user, facts.command, facts.started_at_unix_seconds, memory.rss, times.user, times.system
        )


def _text(raw: str) -> str:
    """Text that can be sent as UTF-8: bytes that were none, which may stand in any command line, become U+FFFD."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
