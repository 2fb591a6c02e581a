"""What rules judge by: a snapshot, and what of it was already there when the window began."""

from __future__ import annotations

from dataclasses import dataclass, field

from neurond.verdicts.thresholds import Thresholds
from neurontools.model import Device, NeuronCore, Process, Snapshot
from neurontools.model.counting import continues


@dataclass(frozen=True, slots=True)
class Evidence:
    """One moment with its past; `devices`, `processes` and `cores_before` are those of the past, still the same."""

    snapshot: Snapshot
    limits: Thresholds
    cores: dict[int, NeuronCore]  # of now, physical
    devices: dict[int, Device] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    cores_before: dict[int, NeuronCore] = field(default_factory=dict)


def evidence(snapshot: Snapshot, earlier: Snapshot | None, limits: Thresholds) -> Evidence:
    """What is to be judged; without an earlier snapshot nothing can be said of growth."""
    cores = {core.index: core for core in snapshot.cores}
    if earlier is None or earlier.sequence == snapshot.sequence:
        return Evidence(snapshot, limits, cores)
    now = {process.pid: process for process in snapshot.processes}
    return Evidence(
        snapshot,
        limits,
        cores,
        {device.index: device for device in earlier.devices},
        {
            process.pid: process
            for process in earlier.processes
            if process.pid in now and continues(process, now[process.pid])
        },
        {core.index: core for core in earlier.cores},
    )


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
