"""Samples are the numbers of a snapshot that plots show. Also: the time axis of plots, and curves of samples."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import isfinite, nan
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from neurontools.rpc import neuron_pb2
from neurontools.util.units import mean_known

_MOST_CORES = 4096
_GAP_INTERVALS = 2.5  # a gap is a time without samples that is longer than this many sampling intervals
_MOST_DOWNSAMPLERS = 48
_MOST_CACHED = 4096
_at = attrgetter("at_seconds")
_Step = TypeVar("_Step")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class HostSample:
    """The numbers of one snapshot that plots show, for each physical core and for each process. NaN means unknown."""

    at_seconds: float  # time in the timeline: the host's CLOCK_MONOTONIC, continued across reboots
    owners: tuple[int, ...]  # PID of the owner of each core, 0 for a free core
    pids: tuple[int, ...]
    numbers: array[float]  # three numbers for each core, then two for each process; a single array saves memory
    interval_seconds: float = 1.0  # sampling interval of the daemon

    @classmethod
    def interned(
        cls,
        at_seconds: float,
        owners: tuple[int, ...],
        pids: tuple[int, ...],
        numbers: array[float],
        interval_seconds: float,
    ) -> HostSample:
        """Returns a sample that shares its PIDs with equal samples, which saves memory."""
        return cls(at_seconds, _intern_pids(owners), _intern_pids(pids), numbers, interval_seconds)

    @property
    def utilization_ratio(self) -> Sequence[float]:
        """Utilization of each physical core, 0 to 1."""
        return self._core_values(0)

    @property
    def flops_per_second(self) -> Sequence[float]:
        """FLOPS of each physical core."""
        return self._core_values(1)

    @property
    def memory_bytes(self) -> Sequence[float]:
        """Device memory in use by each physical core, in bytes."""
        return self._core_values(2)

    @property
    def executions_per_second(self) -> Sequence[float]:
        """Executions per second of each process, in the order of `pids`."""
        return self.numbers[3 * len(self.owners) : 3 * len(self.owners) + len(self.pids)]

    @property
    def latency_p99_seconds(self) -> Sequence[float]:
        """99th percentile of the total latency of each process, in the order of `pids`."""
        return self.numbers[3 * len(self.owners) + len(self.pids) :]

    @property
    def size_bytes(self) -> int:
        """Memory use of the numbers. Leaves out the PIDs, because many samples share one tuple of PIDs."""
        return self.numbers.itemsize * len(self.numbers)

    def _core_values(self, place: int) -> array[float]:
        count = len(self.owners)
        return self.numbers[place * count : (place + 1) * count]


def sample_snapshot(snapshot: neuron_pb2.Snapshot, at_seconds: float) -> HostSample:
    """Returns the sample of a snapshot message, taken at the monotonic time `at_seconds`."""
    # A repeated field makes new objects each time it is read, so it is read once.
    cores: list[neuron_pb2.NeuronCore | None] = list(snapshot.cores)
    if cores and snapshot.cores[-1].index != len(cores) - 1:  # a device is missing
        present = {core.index: core for core in snapshot.cores if core.index < _MOST_CORES}
        cores = [present.get(index) for index in range(1 + max(present, default=-1))]
    processes = list(snapshot.processes)
    # Most values are not 0. Of these, HasField, which is slow, need not be asked.
    numbers = [
        nan if core is None else core.utilization_ratio or (0.0 if core.HasField("utilization_ratio") else nan)
        for core in cores
    ]
    numbers += [
        nan if core is None else core.flops_per_second or (0.0 if core.HasField("flops_per_second") else nan)
        for core in cores
    ]
    numbers += [nan if core is None else _memory_bytes(core.memory) for core in cores]
    numbers += [p.executions_per_second if p.HasField("executions_per_second") else nan for p in processes]
    numbers += [p.total_latency.p99_seconds if p.HasField("total_latency") else nan for p in processes]
    return HostSample.interned(
        at_seconds,
        tuple([core.owner_pid if core else 0 for core in cores]),
        tuple([process.pid for process in processes]),
        array("f", numbers),
        snapshot.interval_seconds,
    )


def _memory_bytes(memory: neuron_pb2.DeviceMemory) -> float:
    """Returns the sum of all categories; NaN if none is known."""
    total = sum(_memory_categories(memory))
    return total if total or memory.ListFields() else nan


_memory_categories = attrgetter(*(field.name for field in neuron_pb2.DeviceMemory.DESCRIPTOR.fields))


@lru_cache(64)
def _intern_pids(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Returns one shared tuple for equal tuples. Thousands of samples have the same PIDs, so this saves memory."""
    return pids


class Downsampler(Generic[_Step]):
    """Base class: combines samples, given in any order, into time steps of equal length for plots.

    `steps` maps the number of each time step to its values.
    """

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.steps: dict[int, _Step] = {}

    def add(self, sample: HostSample) -> None:
        """Adds a sample to its time step."""
        raise NotImplementedError

    def drop_before(self, first: int) -> None:
        """Removes the time steps numbered below `first`."""
        for number in [number for number in self.steps if number < first]:
            del self.steps[number]


class Samples:
    """A list of samples, oldest first. Also keeps the downsamplers of the samples up to date. Not thread-safe."""

    def __init__(self, samples: Iterable[HostSample] = ()) -> None:
        self._samples: list[HostSample] = []
        self._pauses: list[float] = []  # end time of each interval between samples that may be a gap
        self._downsamplers: dict[object, Downsampler[Any]] = {}
        # Results that depend only on time steps before the last one, by key. Cleared when samples of the past change.
        self.cache: dict[object, Any] = {}
        for sample in samples:
            self.append(sample)

    def keep(self, key: object, value: _Value) -> _Value:
        """Adds a result to the cache, whose size is limited, and returns it."""
        if len(self.cache) >= _MOST_CACHED:
            self.cache.clear()
        self.cache[key] = value
        return value

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> HostSample:
        return self._samples[index]

    def between(self, first_seconds: float, end_seconds: float, count: int) -> list[HostSample]:
        """Returns the samples in [first_seconds, end_seconds) among the first `count` samples."""
        low = bisect_left(self._samples, first_seconds, hi=count, key=_at)
        return self._samples[low : bisect_left(self._samples, end_seconds, lo=low, hi=count, key=_at)]

    def append(self, sample: HostSample) -> None:
        """Adds a sample that is newer than all others."""
        if self._samples and self._may_be_gap(self._samples[-1], sample):
            self._pauses.append(sample.at_seconds)
        self._samples.append(sample)
        for downsampler in self._downsamplers.values():
            downsampler.add(sample)

    def insert(self, samples: Sequence[HostSample]) -> None:
        """Inserts samples, given oldest first, at times that have no sample yet."""
        if not samples:
            return
        self.cache.clear()
        self._samples = sorted([*self._samples, *samples], key=_at)
        pairs = zip(self._samples, self._samples[1:], strict=False)
        self._pauses = [after.at_seconds for before, after in pairs if self._may_be_gap(before, after)]
        for downsampler in self._downsamplers.values():
            for sample in samples:
                downsampler.add(sample)

    def drop(self, count: int) -> None:
        """Removes the `count` oldest samples."""
        self.cache.clear()
        del self._samples[:count]
        first_at = self._samples[0].at_seconds if self._samples else float("inf")
        del self._pauses[: bisect_right(self._pauses, first_at)]
        for downsampler in self._downsamplers.values() if self._samples else ():
            # The first remaining time step may have lost some of its samples, so it is rebuilt.
            first = int(first_at // downsampler.step_seconds) + 1
            downsampler.drop_before(first)
            for sample in self.between(first_at, first * downsampler.step_seconds, len(self._samples)):
                downsampler.add(sample)

    def downsampler(self, key: object, empty: Callable[[], Downsampler[_Step]]) -> Downsampler[_Step]:
        """Returns the downsampler with this key, which has all samples. Calls `empty` to create it if it is missing."""
        found: Downsampler[_Step] | None = self._downsamplers.pop(key, None)
        if found is None:
            found = empty()
            for sample in self._samples:
                found.add(sample)
        self._downsamplers[key] = found  # the least recently used key is first
        if len(self._downsamplers) > _MOST_DOWNSAMPLERS:
            del self._downsamplers[next(iter(self._downsamplers))]
        return found

    def gaps(self, first_seconds: float) -> list[tuple[float, float]]:
        """Returns the gaps that end after this time, each as the times of the samples before and after it.

        A gap is a pause between two samples that is much longer than the daemon's sampling interval and than the usual
        pause around it. So the regular pauses of a view with a long update interval are no gaps.
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
    """A time axis of `cells` cells of `cell_seconds` each. The last cell contains the displayed time.

    Cells start at multiples of their length, so they do not shift when the displayed time advances.
    """

    samples: Samples
    count: int  # number of samples up to the displayed time
    cells: int
    cell_seconds: float
    shown_seconds: float
    clock_offset_seconds: float = 0.0  # wall clock of the host minus the monotonic time of the timeline
    _by_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def last(self) -> int:
        """Number of the last cell: the displayed time divided by the cell length, rounded down."""
        return int(self.shown_seconds // self.cell_seconds)

    @property
    def begins_seconds(self) -> float:
        """The start time of the first cell."""
        return (self.last - self.cells + 1) * self.cell_seconds

    def cell_at(self, at_seconds: float) -> int | None:
        """Returns the index of the cell that contains this time; None if the time is outside the axis."""
        cell = int(at_seconds // self.cell_seconds) - self.last + self.cells - 1
        return cell if 0 <= cell < self.cells else None

    def steps(self, per_cell: int = 1) -> tuple[int | None, ...]:
        """Divides each cell into `per_cell` parts and returns the number of the time step to plot in each part.

        A part without data has None. A sample covers the time since the previous sample, unless it follows a gap.
        """
        if per_cell not in self._by_parts:
            self._by_parts[per_cell] = self._cached_steps(per_cell)
        return self._by_parts[per_cell]

    def _cached_steps(self, per_cell: int) -> tuple[int | None, ...]:
        """Computes the steps of the latest samples anew only if a step has begun since the last time."""
        if not 0 < self.count == len(self.samples):
            return self._compute_steps(per_cell)
        newest = int(self.samples[self.count - 1].at_seconds // (self.cell_seconds / per_cell))
        key = (TimeAxis, per_cell, self.cells, self.cell_seconds)
        cached: tuple[int, tuple[int | None, ...]] | None = self.samples.cache.get(key)
        if cached is None or cached[0] != newest:
            cached = self.samples.keep(key, (newest, self._compute_steps(per_cell)))
        return cached[1]

    def _compute_steps(self, per_cell: int) -> tuple[int | None, ...]:
        step_seconds = self.cell_seconds / per_cell
        parts = self.cells * per_cell
        first = (self.last + 1) * per_cell - parts
        found: list[int | None] = [None] * parts
        before = first - 1
        samples = self.samples.between(self.begins_seconds, float("inf"), self.count)
        gaps = [(start // step_seconds, end // step_seconds) for start, end in self.samples.gaps(self.begins_seconds)]
        after_gaps = {end for start, end in gaps if start < end}
        has_earlier = self.count > len(samples)
        for number in dict.fromkeys([int(sample.at_seconds // step_seconds) for sample in samples]):
            part = number - first
            if part >= parts:
                break
            if number in after_gaps:
                if number <= before + 1 and before >= first:
                    found[before - first] = None
            elif has_earlier:
                for between in range(max(0, before + 1 - first), part):
                    found[between] = number
            found[part] = number
            before, has_earlier = number, True
        return tuple(found)


TREND_STEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a quantity along a time axis, with their minimum, mean and maximum. None means unknown."""

    values: tuple[float | None, ...]
    latest: float | None
    _steps: tuple[QuantityStep | None, ...]  # of the values; neighbours may share one

    @property
    def lowest(self) -> float | None:
        """The lowest value of a sample."""
        return min((step.lowest for step in self._steps if step is not None), default=None)

    @property
    def mean(self) -> float | None:
        """The mean of all samples."""
        steps = {id(step): step for step in self._steps if step is not None}.values()
        return sum(step.total for step in steps) / sum(step.count for step in steps) if steps else None

    @property
    def highest(self) -> float | None:
        """The highest value of a sample."""
        return max((step.highest for step in self._steps if step is not None), default=None)


class Series:
    """Makes curves of the samples up to the displayed time, which are the first `count` of `samples`."""

    def __init__(self, samples: Samples, count: int | None = None) -> None:
        self._samples = samples
        self._count = len(samples) if count is None else count
        self._cut: dict[object, object] = {}  # time steps up to the displayed time, by key of the downsampler

    def __len__(self) -> int:
        return self._count

    def axis(self, cells: int, window_seconds: float, shown_unix_seconds: float = 0.0) -> TimeAxis:
        """Returns a time axis of `cells` cells that covers `window_seconds` up to the displayed time."""
        shown_seconds = self._samples[self._count - 1].at_seconds if self._count else 0.0
        cells = max(1, cells)
        offset_seconds = shown_unix_seconds - shown_seconds
        return TimeAxis(self._samples, self._count, cells, window_seconds / cells, shown_seconds, offset_seconds)

    def curve(self, quantity: HostQuantity, axis: TimeAxis, per_cell: int = 1) -> Curve:
        """Returns the curve of a quantity along a time axis, with `per_cell` values for each cell."""
        step_seconds = axis.cell_seconds / per_cell
        empty = partial(QuantityDownsampler, quantity, step_seconds)
        found = self._steps((quantity, step_seconds), empty, step_seconds)
        shown = tuple([None if number is None else found.get(number) for number in axis.steps(per_cell)])
        if quantity.is_level:
            values = tuple([None if step is None else step.highest for step in shown])
        else:
            values = tuple([None if step is None else step.total / step.count for step in shown])
        latest = quantity.read(self._samples[self._count - 1]) if self._count else None
        return Curve(values, latest, shown)

    def core_steps(self, axis: TimeAxis) -> list[CoreStep | None]:
        """Returns the utilization of all cores for each cell of a time axis; None for a cell without data."""
        found = self._steps(axis.cell_seconds, partial(CoreDownsampler, axis.cell_seconds), axis.cell_seconds)
        return [None if number is None else found.get(number) for number in axis.steps()]

    def core_trend(self, first: int, count: int, length: int) -> tuple[float | None, ...]:
        """Returns the mean utilization of some physical cores in each of the last `length` steps of 5 s.

        The cores are the `count` cores from index `first`. None means unknown. Returns () if there is no sample.
        """
        if not self._count:
            return ()
        found, latest = self._trend_steps
        key = (first, count, length, latest)
        earlier = self._samples.cache.get(key)
        if earlier is None:
            steps = map(found.get, range(latest - length + 1, latest))
            earlier = tuple([None if step is None else mean_of_cores(step, first, count) for step in steps])
            self._samples.keep(key, earlier)
        step = found.get(latest)
        return *earlier, None if step is None else mean_of_cores(step, first, count)

    def were_used(self, cores: range, since_seconds: float) -> bool:
        """Returns whether some of these physical cores were held or busy since this time, in steps of 5 s."""
        if not self._count:
            return False
        found, latest = self._trend_steps
        if _is_used(found.get(latest), cores):
            return True
        key = (cores, int(since_seconds // TREND_STEP_SECONDS), latest)
        kept: bool | None = self._samples.cache.get(key)
        if kept is not None:
            return kept
        return self._samples.keep(key, any(_is_used(found.get(number), cores) for number in range(*key[1:])))

    @cached_property
    def _trend_steps(self) -> tuple[dict[int, CoreStep], int]:
        """The time steps of the trends, and the number of the last one."""
        empty = partial(CoreDownsampler, TREND_STEP_SECONDS)
        latest = int(self._samples[self._count - 1].at_seconds // TREND_STEP_SECONDS)
        return self._steps(TREND_STEP_SECONDS, empty, TREND_STEP_SECONDS), latest

    def _steps(self, key: object, empty: Callable[[], Downsampler[_Step]], step_seconds: float) -> dict[int, _Step]:
        """Returns the time steps of a downsampler. The last step includes only samples up to the displayed time."""
        if key in self._cut:
            return cast("dict[int, _Step]", self._cut[key])
        found = self._samples.downsampler(key, empty).steps
        if 0 < self._count < len(self._samples):
            last = int(self._samples[self._count - 1].at_seconds // step_seconds)
            anew = empty()
            for sample in self._samples.between(last * step_seconds, float("inf"), self._count):
                anew.add(sample)
            found = {**found, **anew.steps}
        self._cut[key] = found
        return found


def _is_used(step: CoreStep | None, cores: range) -> bool:
    part = slice(cores.start, cores.stop)
    return step is not None and (any(step.owners[part]) or any(step.means[part]))


def mean_of_cores(step: CoreStep, first: int, count: int) -> float | None:
    """Returns the mean utilization of `count` physical cores from index `first`; None if all are unknown."""
    if count == 1:
        return step.means[first] if first < len(step.means) else None
    return mean_known(step.means[first : first + count])


@dataclass(slots=True)
class QuantityStep:
    """Minimum, maximum, sum and count of a quantity's values in one time step."""

    total: float
    count: int
    lowest: float
    highest: float

    def add(self, value: float) -> None:
        """Adds a value to the step."""
        self.total += value
        self.count += 1
        if value < self.lowest:
            self.lowest = value
        elif value > self.highest:
            self.highest = value


class QuantityDownsampler(Downsampler[QuantityStep]):
    """Downsamples one quantity."""

    def __init__(self, quantity: HostQuantity, step_seconds: float) -> None:
        super().__init__(step_seconds)
        self._quantity = quantity

    def add(self, sample: HostSample) -> None:
        """Adds the quantity's value in a sample to its time step."""
        value = self._quantity.read(sample)
        if value is None:
            return
        number = int(sample.at_seconds // self.step_seconds)
        step = self.steps.get(number)
        if step is None:
            self.steps[number] = QuantityStep(value, 1, value, value)
        else:
            step.add(value)


@dataclass(slots=True)
class CoreStep:
    """Mean utilization and owner of each physical core in one time step. None means unknown."""

    means: list[float | None]
    owners: tuple[int, ...]
    at_seconds: float  # time of the latest sample
    counts: list[int]


class CoreDownsampler(Downsampler[CoreStep]):
    """Downsamples the utilization of all cores."""

    def add(self, sample: HostSample) -> None:
        """Adds the utilization of all cores in a sample to its time step."""
        number = int(sample.at_seconds // self.step_seconds)
        step = self.steps.get(number)
        values = sample.utilization_ratio
        if step is None or len(step.means) != len(values):
            means = [value if value == value else None for value in values]  # NaN differs from itself
            self.steps[number] = CoreStep(means, sample.owners, sample.at_seconds, [1] * len(means))
            return
        if sample.at_seconds > step.at_seconds:
            step.owners, step.at_seconds = sample.owners, sample.at_seconds
        for index, value in enumerate(values):
            if value == value:
                mean = step.means[index]
                if mean is None:
                    step.means[index], step.counts[index] = value, 1
                else:
                    step.counts[index] += 1
                    step.means[index] = mean + (value - mean) / step.counts[index]


_OF_PROCESSES = ("executions_per_second", "latency_p99_seconds")  # attributes of HostSample with a value per process


@dataclass(frozen=True, slots=True)
class HostQuantity:
    """A quantity that plots read from each sample, for the whole host, some physical cores or one process.

    `name` is the attribute of `HostSample`. For several cores, the value in a sample is the mean utilization, or the
    sum of another quantity. For each time step, plots show the maximum of a level, such as memory, and the mean of a
    rate. Plots of the same quantity with the same time step share a downsampler.
    """

    name: str
    core_ranges: tuple[range, ...] = ()  # indices of physical cores; (): all cores
    pid: int | None = None

    @property
    def is_level(self) -> bool:
        """Whether the quantity is a level. If not, the quantity is a rate."""
        return self.name in ("memory_bytes", "latency_p99_seconds")

    def read(self, sample: HostSample) -> float | None:
        """Returns the value of the quantity in a sample; None means unknown.

        An infinite value is unknown, because no plot has a scale for it. A crafted recording can contain one.
        """
        values = self._known_values(sample, getattr(sample, self.name))
        total = sum(values)
        if not values or not isfinite(total):
            return None
        return total / len(values) if self.name == "utilization_ratio" else total

    def _known_values(self, sample: HostSample, values: Sequence[float]) -> Sequence[float]:
        """Returns those of a sample's values that are known (not NaN) and belong to the quantity's cores or process."""
        if self.pid is not None:
            owners = sample.pids if self.name in _OF_PROCESSES else sample.owners
            pid = self.pid
            return [value for value, owner in zip(values, owners, strict=True) if owner == pid and value == value]
        if not self.core_ranges:
            return [value for value in values if value == value]  # NaN differs from itself
        parts = (values[cores.start : cores.stop] for cores in self.core_ranges)
        return [value for part in parts for value in part if value == value]
