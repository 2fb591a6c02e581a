"""Samples: the plotted numbers of each moment, the gaps between them, and the time axis of plots."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import Protocol, TypeVar, cast

from neurontools.rpc import neuron_pb2

_MOST_CORES = 4096
_GAP_INTERVALS = 2.5  # a pause of more than this many intervals is a gap
_MOST_GATHERED = 48
_at = attrgetter("at_seconds")


@dataclass(frozen=True, slots=True)
class HostSample:
    """The numbers of one snapshot, by index of the physical core and by process. NaN is unknown."""

    at_seconds: float  # position in the timeline
    owners: tuple[int, ...]  # PID by core, 0 for a free core
    pids: tuple[int, ...]
    numbers: array[float]  # one array to save memory: three numbers for each core, then two for each process
    interval_seconds: float = 1.0  # sampling interval of the daemon

    @property
    def utilization_ratio(self) -> Sequence[float]:
        """By core."""
        return self._core_values(0)

    @property
    def flops_per_second(self) -> Sequence[float]:
        """By core."""
        return self._core_values(1)

    @property
    def memory_bytes(self) -> Sequence[float]:
        """By core."""
        return self._core_values(2)

    @property
    def executions_per_second(self) -> Sequence[float]:
        """In the order of `pids`."""
        return self.numbers[3 * len(self.owners) : 3 * len(self.owners) + len(self.pids)]

    @property
    def latency_p99_seconds(self) -> Sequence[float]:
        """Total latency, in the order of `pids`."""
        return self.numbers[3 * len(self.owners) + len(self.pids) :]

    @property
    def size_bytes(self) -> int:
        """Size of the numbers. The PIDs are shared with other samples."""
        return self.numbers.itemsize * len(self.numbers)

    def _core_values(self, place: int) -> array[float]:
        count = len(self.owners)
        return self.numbers[place * count : (place + 1) * count]


def sample_snapshot(snapshot: neuron_pb2.Snapshot, at_seconds: float) -> HostSample:
    """Makes the sample of a snapshot message."""
    cores: Sequence[neuron_pb2.NeuronCore | None] = snapshot.cores
    if cores and snapshot.cores[-1].index != len(cores) - 1:  # a device is missing
        present = {core.index: core for core in snapshot.cores if core.index < _MOST_CORES}
        cores = [present.get(index) for index in range(1 + max(present, default=-1))]
    processes = snapshot.processes
    numbers = [core.utilization_ratio if core and core.HasField("utilization_ratio") else nan for core in cores]
    numbers += [core.flops_per_second if core and core.HasField("flops_per_second") else nan for core in cores]
    numbers += [_memory_bytes(core) for core in cores]
    numbers += [p.executions_per_second if p.HasField("executions_per_second") else nan for p in processes]
    numbers += [p.total_latency.p99_seconds if p.HasField("total_latency") else nan for p in processes]
    return HostSample(
        at_seconds,
        _intern_pids(tuple([core.owner_pid if core else 0 for core in cores])),
        _intern_pids(tuple([process.pid for process in processes])),
        array("f", numbers),
        snapshot.interval_seconds,
    )


@lru_cache(64)
def _intern_pids(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the same tuple for equal ones, because PIDs rarely change and there are thousands of samples."""
    return pids


def _memory_bytes(core: neuron_pb2.NeuronCore | None) -> float:
    known = core.memory.ListFields() if core else ()
    return sum(size for _, size in known) if known else nan


class Downsampler(Protocol):
    """Combines samples, added in any order, into steps of the timeline for plots."""

    step_seconds: float

    def add(self, sample: HostSample) -> None:
        """Adds a sample."""

    def forget(self, first: int) -> None:
        """Removes the steps before this number."""


_Downsampler = TypeVar("_Downsampler", bound=Downsampler)


class Samples:
    """Samples, oldest first, and the downsamplers that follow them. For one thread."""

    def __init__(self, samples: Iterable[HostSample] = ()) -> None:
        self._samples: list[HostSample] = []
        self._pauses: list[float] = []  # ends of pauses that may be gaps
        self._gathered: dict[object, Downsampler] = {}
        for sample in samples:
            self.append(sample)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> HostSample:
        return self._samples[index]

    def between(self, first_seconds: float, end_seconds: float, count: int) -> list[HostSample]:
        """The samples in [first_seconds, end_seconds) among the first `count`."""
        low = bisect_left(self._samples, first_seconds, hi=count, key=_at)
        return self._samples[low : bisect_left(self._samples, end_seconds, lo=low, hi=count, key=_at)]

    def append(self, sample: HostSample) -> None:
        """Adds a sample that is newer than all others."""
        if self._samples and self._may_be_gap(self._samples[-1], sample):
            self._pauses.append(sample.at_seconds)
        self._samples.append(sample)
        for gathering in self._gathered.values():
            gathering.add(sample)

    def insert(self, samples: Sequence[HostSample]) -> None:
        """Adds samples, oldest first, at times without a sample."""
        if not samples:
            return
        self._samples = sorted([*self._samples, *samples], key=_at)
        pairs = zip(self._samples, self._samples[1:], strict=False)
        self._pauses = [after.at_seconds for before, after in pairs if self._may_be_gap(before, after)]
        for gathering in self._gathered.values():
            for sample in samples:
                gathering.add(sample)

    def drop(self, count: int) -> None:
        """Removes the oldest samples."""
        del self._samples[:count]
        first_at = self._samples[0].at_seconds if self._samples else float("inf")
        del self._pauses[: bisect_right(self._pauses, first_at)]
        for gathering in self._gathered.values() if self._samples else ():
            # The first step may have lost some of its samples, so build it again.
            first = int(first_at // gathering.step_seconds) + 1
            gathering.forget(first)
            for sample in self.between(first_at, first * gathering.step_seconds, len(self._samples)):
                gathering.add(sample)

    def downsampler(self, key: object, empty: Callable[[], _Downsampler]) -> _Downsampler:
        """Returns the downsampler with this key. `empty` creates it if needed."""
        found = cast("_Downsampler | None", self._gathered.pop(key, None))
        if found is None:
            found = empty()
            for sample in self._samples:
                found.add(sample)
        self._gathered[key] = found  # most recently used last
        if len(self._gathered) > _MOST_GATHERED:
            del self._gathered[next(iter(self._gathered))]
        return found

    def gaps(self, first_seconds: float) -> list[tuple[float, float]]:
        """Returns the gaps that end after this time: from the sample before each gap to the sample after it.

        A pause is a gap if it is much longer than the daemon's interval and than the pauses around it. So a view with a
        long interval has no gaps.
        """
        found = []
        for end in self._pauses[bisect_right(self._pauses, first_seconds) :]:
            index = bisect_left(self._samples, end, key=_at)
            near = [self._pause(each) for each in (index - 2, index - 1, index + 1, index + 2)]
            usual = sorted(pause for pause in near if pause is not None)
            if not usual or self._samples[index].at_seconds - self._samples[index - 1].at_seconds > (
                _GAP_INTERVALS * usual[len(usual) // 2]
            ):
                found.append((self._samples[index - 1].at_seconds, end))
        return found

    def _pause(self, index: int) -> float | None:
        if not 0 < index < len(self._samples):
            return None
        return self._samples[index].at_seconds - self._samples[index - 1].at_seconds

    @staticmethod
    def _may_be_gap(before: HostSample, after: HostSample) -> bool:
        return after.at_seconds - before.at_seconds > _GAP_INTERVALS * max(after.interval_seconds, 0.0)


@dataclass(frozen=True)
class TimeAxis:
    """A time axis of `cells` cells of `cell_seconds` each. The last cell contains the shown moment.

    Cells start at multiples of their length, so they do not move with the shown moment.
    """

    samples: Samples
    count: int  # number of samples up to the shown moment
    cells: int
    cell_seconds: float
    shown_seconds: float
    clock_offset_seconds: float = 0.0  # host clock minus timeline
    _by_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def last(self) -> int:
        """The number of the last cell."""
        return int(self.shown_seconds // self.cell_seconds)

    @property
    def begins_seconds(self) -> float:
        """The start of the first cell."""
        return (self.last - self.cells + 1) * self.cell_seconds

    def cell_at(self, at_seconds: float) -> int | None:
        """The index of the cell at this time; None if it is outside the axis."""
        cell = int(at_seconds // self.cell_seconds) - self.last + self.cells - 1
        return cell if 0 <= cell < self.cells else None

    def steps(self, per_cell: int = 1) -> tuple[int | None, ...]:
        """Divides each cell into `per_cell` parts and returns the number of the time step for each part.

        None marks a part without data. A sample covers the time since the previous sample. A gap fills a part or more.
        """
        if per_cell not in self._by_parts:
            self._by_parts[per_cell] = self._compute_steps(per_cell)
        return self._by_parts[per_cell]

    def _compute_steps(self, per_cell: int) -> tuple[int | None, ...]:
        step_seconds = self.cell_seconds / per_cell
        parts = self.cells * per_cell
        first = (self.last + 1) * per_cell - parts
        found: list[int | None] = [None] * parts
        before = first - 1
        known = self.samples.between(self.begins_seconds, float("inf"), self.count)
        gap_ends = {end for _, end in self.samples.gaps(self.begins_seconds)}
        has_earlier = self.count > len(known)
        for sample in known:
            number = int(sample.at_seconds // step_seconds)
            part = number - first
            if part >= parts:
                break
            if sample.at_seconds in gap_ends:
                if number <= before + 1 and before >= first:
                    found[before - first] = None
            elif has_earlier:
                for between in range(max(0, before + 1 - first), part):
                    found[between] = number
            found[part] = number
            before, has_earlier = number, True
        return tuple(found)
