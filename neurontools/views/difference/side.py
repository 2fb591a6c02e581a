"""One side of a comparison: some moments of a host, summed up by job and by device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neurontools.model import Process, Snapshot, health
from neurontools.util.terminal import escape_controls
from neurontools.views.difference.quantities import (
    OF_DEVICE,
    OF_HOST,
    OF_JOB,
    DeviceState,
    Holder,
    Over,
    Quantity,
    Value,
)
from neurontools.views.drawing.figures import Figures, ProcessFigures

Passes = Callable[[ProcessFigures], bool]


@dataclass(slots=True)
class Subject:
    """The host, a job or a device: its values moment by moment, as far as they are known."""

    quantities: Mapping[Quantity, Callable[[Any], Value]]
    seen: dict[Quantity, list[float | int | str]] = field(default_factory=dict)
    command: str = ""  # of a job: that of its first process

    def add(self, state: object) -> None:
        """Add a moment."""
        for quantity, read in self.quantities.items():
            value = read(state)
            if value is not None:
                self.seen.setdefault(quantity, []).append(value)

    def value(self, quantity: Quantity) -> Value:
        """What stands for all moments; None is unknown."""
        values = self.seen.get(quantity)
        if not values:
            return None
        numbers = [value for value in values if not isinstance(value, str)]
        if quantity.over is Over.LAST or len(numbers) < len(values):
            return values[-1]
        return max(numbers) if quantity.over is Over.PEAK else sum(numbers) / len(numbers)


class Side:
    """Some moments of a host. `name` is what was asked for; `moment_count` how many there are in what was asked for."""

    def __init__(self, name: str, *, moment_count: int = 1) -> None:
        self.name = name
        self.moment_count = moment_count
        self.taken_at_unix_seconds: list[float] = []
        self.instance = ""
        self.host = Subject(OF_HOST)
        self.jobs: dict[str, Subject] = {}
        self.devices: dict[int, Subject] = {}

    def add(self, snapshot: Snapshot, passes: Passes | None = None) -> None:
        """Add a moment; only processes that pass count for jobs."""
        figures = Figures(snapshot)
        self.taken_at_unix_seconds.append(snapshot.taken_at_unix_seconds)
        instance = snapshot.instance
        self.instance = escape_controls(f"{instance.instance_id or 'a host'} ({instance.instance_type})")
        self.host.add(figures)
        for name, holder in _jobs(figures, passes).items():
            job = self.jobs.setdefault(name, Subject(OF_JOB))
            job.command = job.command or holder.processes[0].process.command
            job.add(holder)
        verdicts = {verdict.device_index: verdict for verdict in health.verdicts(snapshot)}
        present = {device.index for device in snapshot.devices}
        for device in figures.snapshot.devices:
            if device.index in present:
                verdict = verdicts.get(device.index, health.Verdict(device.index, is_known=False))
                state = DeviceState(device, verdict, figures)
                self.devices.setdefault(device.index, Subject(OF_DEVICE)).add(state)


def _jobs(figures: Figures, passes: Passes | None) -> dict[str, Holder]:
    """What passes of the processes that hold cores, by job; one that is of none is one by itself."""
    found: dict[str, Holder] = {}
    for job in figures.jobs:
        processes = [figures.by_pid[rank.process.pid] for rank in job.ranks]
        kept = tuple(each for each in processes if passes is None or passes(each))
        if kept:
            found[job.name if job.name is not None else _name(kept[0].process)] = Holder(kept)
    return found


def _name(process: Process) -> str:
    return f"PID {process.pid}" if process.tag in ("", str(process.pid)) else f"{process.tag} (PID {process.pid})"


def paired(a: Side, b: Side) -> list[tuple[str | None, str | None]]:
    """Which job of one side is which of the other: by name, else by command, else the last one left on both.

    PIDs and numbers of jobs differ from run to run. A job without its like stands alone.
    """
    pairs: list[tuple[str | None, str | None]] = [(name, name) for name in a.jobs if name in b.jobs]
    rest_a = [name for name in a.jobs if name not in b.jobs]
    rest_b = [name for name in b.jobs if name not in a.jobs]
    for name in list(rest_a):
        same = [other for other in rest_b if b.jobs[other].command == a.jobs[name].command]
        if _is_only(a, rest_a, name) and len(same) == 1:
            pairs.append((name, same[0]))
            rest_a.remove(name)
            rest_b.remove(same[0])
    if len(rest_a) == len(rest_b) == 1:
        return [*pairs, (rest_a[0], rest_b[0])]
    return [*pairs, *((name, None) for name in rest_a), *((None, name) for name in rest_b)]


def _is_only(side: Side, names: Sequence[str], name: str) -> bool:
    command = side.jobs[name].command
    return bool(command) and sum(side.jobs[other].command == command for other in names) == 1
