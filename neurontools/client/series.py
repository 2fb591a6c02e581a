"""Makes curves for plots: downsamples a quantity of the samples along a time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, cast

from neurontools.client.samples import Downsampler, HostSample, Samples, TimeAxis
from neurontools.util.units import mean_known

TREND_STEP_SECONDS = 5.0
_Step = TypeVar("_Step")


class _Steps(Downsampler, Protocol[_Step]):
    @property
    def steps(self) -> dict[int, _Step]: ...


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
        found = self._steps(
            (quantity, step_seconds), partial(QuantityDownsampler, quantity, step_seconds), step_seconds
        )
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

    def _steps(self, key: object, empty: Callable[[], _Steps[_Step]], step_seconds: float) -> dict[int, _Step]:
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


class QuantityDownsampler:
    """Downsamples one quantity. `steps` maps the number of each time step to its values."""

    def __init__(self, quantity: HostQuantity, step_seconds: float) -> None:
        self.steps: dict[int, QuantityStep] = {}
        self._quantity = quantity
        self.step_seconds = step_seconds

    def add(self, sample: HostSample) -> None:
        """Adds the quantity's value in a sample to its time step. Samples may come in any order."""
        value = self._quantity.read(sample)
        if value is None:
            return
        number = int(sample.at_seconds // self.step_seconds)
        step = self.steps.get(number)
        if step is None:
            self.steps[number] = QuantityStep(value, 1, value, value)
        else:
            step.add(value)

    def drop_before(self, first: int) -> None:
        """Removes the time steps numbered below `first`."""
        _forget(self.steps, first)


@dataclass(slots=True)
class CoreStep:
    """Mean utilization and owner of each physical core in one time step. None means unknown."""

    means: list[float | None]
    owners: tuple[int, ...]
    at_seconds: float  # time of the latest sample
    counts: list[int]


class CoreDownsampler:
    """Downsamples the utilization of all cores. `steps` maps the number of each time step to its values."""

    def __init__(self, step_seconds: float) -> None:
        self.steps: dict[int, CoreStep] = {}
        self.step_seconds = step_seconds

    def add(self, sample: HostSample) -> None:
        """Adds the utilization of all cores in a sample to its time step. Samples may come in any order."""
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

    def drop_before(self, first: int) -> None:
        """Removes the time steps numbered below `first`."""
        _forget(self.steps, first)


def _forget(steps: dict[int, QuantityStep] | dict[int, CoreStep], first: int) -> None:
    for number in [number for number in steps if number < first]:
        del steps[number]


@dataclass(frozen=True, slots=True)
class HostQuantity:
    """A quantity that plots read from each sample, for the whole host, some physical cores or one process.

    For each time step, plots show the maximum of a level, such as memory, and the mean of a rate. Plots of the
    same quantity with the same time step share a downsampler.
    """

    name: str
    is_level: bool
    first_core: int = 0
    core_count: int = 0
    pid: int | None = None

    def read(self, sample: HostSample) -> float | None:
        """Returns the value of the quantity in a sample; None means unknown."""
        return _READ[self.name](self, sample)


def utilization_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the mean utilization of cores, 0 to 1."""
    return HostQuantity("utilization", False, first_core, core_count, pid)


def memory_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the device memory in use by cores, in bytes."""
    return HostQuantity("memory", True, first_core, core_count, pid)


def flops_quantity(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for the total FLOPS of cores."""
    return HostQuantity("flops", False, first_core, core_count, pid)


def executions_quantity(*, pid: int | None = None) -> HostQuantity:
    """Returns the quantity for finished executions per second, of one process or of all."""
    return HostQuantity("executions", False, pid=pid)


def latency_p99_quantity(pid: int) -> HostQuantity:
    """Returns the quantity for the 99th percentile of a process's total latency, in seconds."""
    return HostQuantity("latency_p99", True, pid=pid)


def _select_values(quantity: HostQuantity, sample: HostSample, values: Sequence[float]) -> Sequence[float]:
    """Returns the known values of the quantity's cores, or of the cores of its process."""
    if quantity.pid is not None:
        pid = quantity.pid
        return [value for value, owner in zip(values, sample.owners, strict=True) if owner == pid and value == value]
    if quantity.core_count == 1:
        found = values[quantity.first_core : quantity.first_core + 1]
        return found if found and found[0] == found[0] else ()
    if quantity.core_count:
        values = values[quantity.first_core : quantity.first_core + quantity.core_count]
    return [value for value in values if value == value]  # NaN differs from itself


def _mean_utilization(quantity: HostQuantity, sample: HostSample) -> float | None:
    ratios = _select_values(quantity, sample, sample.utilization_ratio)
    return sum(ratios) / len(ratios) if ratios else None


def _sum_of_memory(quantity: HostQuantity, sample: HostSample) -> float | None:
    sizes = _select_values(quantity, sample, sample.memory_bytes)
    return sum(sizes) if sizes else None


def _sum_of_flops(quantity: HostQuantity, sample: HostSample) -> float | None:
    rates = _select_values(quantity, sample, sample.flops_per_second)
    return sum(rates) if rates else None


def _executions(quantity: HostQuantity, sample: HostSample) -> float | None:
    if quantity.pid is not None:
        return _process_value(quantity.pid, sample, sample.executions_per_second)
    rates = [value for value in sample.executions_per_second if value == value]
    return sum(rates) if rates else None


def _latency_p99(quantity: HostQuantity, sample: HostSample) -> float | None:
    return None if quantity.pid is None else _process_value(quantity.pid, sample, sample.latency_p99_seconds)


def _process_value(pid: int, sample: HostSample, values: Sequence[float]) -> float | None:
    if pid not in sample.pids:
        return None
    value = values[sample.pids.index(pid)]
    return value if value == value else None


_READ: dict[str, Callable[[HostQuantity, HostSample], float | None]] = {
    "utilization": _mean_utilization,
    "memory": _sum_of_memory,
    "flops": _sum_of_flops,
    "executions": _executions,
    "latency_p99": _latency_p99,
}
