"""What rules judge by: a snapshot, and what of it was already there when the window began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neurond.verdicts.thresholds import Thresholds
from neurontools.model import Device, ErrorCounters, NeuronCore, Process, Snapshot
from neurontools.model.counting import continues, counted_since_unix_seconds

NO_ERRORS = ErrorCounters()
Who = tuple[int, float | None]
"""A process, and not the next one with its PID."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One moment with its past; `devices`, `processes` and `cores_before` are those of the past, still the same.

    `met` are the processes that the past has not, as they were when they were first seen after it.
    """

    snapshot: Snapshot
    limits: Thresholds
    cores: dict[int, NeuronCore]  # of now, physical
    devices: dict[int, Device] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    cores_before: dict[int, NeuronCore] = field(default_factory=dict)
    met: dict[int, Process] = field(default_factory=dict)

    def errors_before(self, process: Process) -> ErrorCounters | None:
        """The errors that a process had when the window began: none where it began to count later; None: not known."""
        before = self.processes.get(process.pid)
        since = counted_since_unix_seconds(process, self.snapshot)
        if since is None:  # the driver counts, and the process is credited with that from when it was first seen
            return NO_ERRORS if before is None else before.errors
        if self.snapshot.taken_at_unix_seconds - since <= self.limits.window_seconds:
            return NO_ERRORS
        before = before or self.met.get(process.pid)
        return None if before is None else before.errors


def evidence(snapshot: Snapshot, past: Sequence[Snapshot], limits: Thresholds) -> Evidence:
    """What is to be judged, with earlier snapshots, oldest first: the first is of when the window began, or later."""
    cores = {core.index: core for core in snapshot.cores}
    past = [each for each in past if each.sequence != snapshot.sequence]
    if not past:
        return Evidence(snapshot, limits, cores)
    earlier = past[0]
    now = {process.pid: process for process in snapshot.processes}
    processes = _continuing(earlier, now)
    unknown = {pid: process for pid, process in now.items() if pid not in processes}
    return Evidence(
        snapshot,
        limits,
        cores,
        {device.index: device for device in earlier.devices},
        processes,
        {core.index: core for core in earlier.cores},
        {pid: process for each in reversed(past[1:]) for pid, process in _continuing(each, unknown).items()}
        if unknown
        else {},
    )


def _continuing(earlier: Snapshot, now: dict[int, Process]) -> dict[int, Process]:
    """Those of an earlier snapshot from whose counters these go on."""
    return {
        process.pid: process
        for process in earlier.processes
        if process.pid in now and continues(process, now[process.pid])
    }


def who_is(process: Process) -> Who:
    """Which process it is."""
    return process.pid, process.attached_at_unix_seconds or process.started_at_unix_seconds


def growth(before: int | None, now: int | None) -> int:
    """By how much a counter grew; 0 where an end is unknown or it began anew."""
    return max(0, now - before) if before is not None and now is not None else 0


def counted(count: int, what: str) -> str:
    """A number of things: "1 error", "3 errors"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def at_least(count: int, what: str) -> str:
    """A number that goes on growing, as a sentence that does not change with every one: "at least 20 errors"."""
    if count < 10:
        return counted(count, what)
    power = 10 ** (len(str(count)) - 1)
    return f"at least {max(step * power for step in (1, 2, 5) if step * power <= count):,} {what}s"
