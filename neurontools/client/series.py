"""Makes curves for plots: downsamples a quantity of the samples along a time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from neurontools.client.samples import Downsampler, HostSample, Samples, TimeAxis
from neurontools.util.units import mean_known

TREND_STEP_SECONDS = 5.0
_Step = TypeVar("_Step")


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a quantity along a time axis, with their minimum, mean and maximum. None means unknown."""

    values: tuple[float | None, ...]
    latest: float | None
    lowest: float | None
    mean: float | None
    highest: float | None


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
        numbers = axis.steps(per_cell)
        shown = [None if number is None else found.get(number) for number in numbers]
        values = tuple(
            None if step is None else step.highest if quantity.is_level else step.total / step.count for step in shown
        )
        latest = quantity.read(self._samples[self._count - 1]) if self._count else None
        samples = [found[number] for number in {number for number in numbers if number is not None} if number in found]
        if not samples:
            return Curve(values, latest, None, None, None)
        return Curve(
            values,
            latest,
            min(step.lowest for step in samples),
            sum(step.total for step in samples) / sum(step.count for step in samples),
            max(step.highest for step in samples),
        )

    def core_steps(self, axis: TimeAxis) -> list[CoreStep | None]:
        """Returns the utilization of all cores for each cell of a time axis; None for a cell without data."""
        found = self._steps(axis.cell_seconds, partial(CoreDownsampler, axis.cell_seconds), axis.cell_seconds)
        return [None if number is None else found.get(number) for number in axis.steps()]

    def core_trend(self, first: int, count: int, length: int) -> list[float | None]:
        """Returns the mean utilization of some physical cores in each of the last `length` steps of 5 s.

        The cores are the `count` cores from index `first`. None means unknown. The list is empty if there is no sample.
        """
        if not self._count:
            return []
        found = self._steps(TREND_STEP_SECONDS, partial(CoreDownsampler, TREND_STEP_SECONDS), TREND_STEP_SECONDS)
        latest = int(self._samples[self._count - 1].at_seconds // TREND_STEP_SECONDS)
        steps = map(found.get, range(latest - length + 1, latest + 1))
        return [None if step is None else mean_of_cores(step, first, count) for step in steps]

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


def mean_of_cores(step: CoreStep, first: int, count: int) -> float | None:
    """Returns the mean utilization of `count` physical cores from index `first`; None if all are unknown."""
    if count == 1:
        return step.means[first] if first < len(step.means) else None
    return mean_known(value for value in step.means[first : first + count])


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

    For each time step, plots show the maximum of a level, such as memory, and the mean of a rate. Plots of the
    same quantity with the same time step share a downsampler. `name` is the attribute of `HostSample`.
    """

    name: str
    is_level: bool
    first_core: int = 0
    core_count: int = 0
    pid: int | None = None

    def read(self, sample: HostSample) -> float | None:
        """Returns the value of the quantity in a sample; None means unknown."""
        values = self._known_values(sample, getattr(sample, self.name))
        if not values:
            return None
        return sum(values) / len(values) if self.name == "utilization_ratio" else sum(values)

    def _known_values(self, sample: HostSample, values: Sequence[float]) -> Sequence[float]:
        """Returns the known values of the quantity's cores, of the cores of its process, or of its process."""
        if self.pid is not None:
            owners = sample.pids if self.name in _OF_PROCESSES else sample.owners
            pid = self.pid
            return [value for value, owner in zip(values, owners, strict=True) if owner == pid and value == value]
        if self.core_count == 1:
            found = values[self.first_core : self.first_core + 1]
            return found if found and found[0] == found[0] else ()
        if self.core_count:
            values = values[self.first_core : self.first_core + self.core_count]
        return [value for value in values if value == value]  # NaN differs from itself


def utilization_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the mean utilization of cores, 0 to 1."""
    return HostQuantity("utilization_ratio", False, first_core, core_count, pid)


def memory_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the device memory in use by cores, in bytes."""
    return HostQuantity("memory_bytes", True, first_core, core_count, pid)


def flops_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the total FLOPS of cores."""
    return HostQuantity("flops_per_second", False, first_core, core_count, pid)


def executions_quantity(*, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for finished executions per second, of one process or of all."""
    return HostQuantity("executions_per_second", False, pid=pid)


def latency_p99_quantity(pid: int) -> HostQuantity:
    """Returns the quantity for the 99th percentile of a process's total latency, in seconds."""
    return HostQuantity("latency_p99_seconds", True, pid=pid)
