"""The recent past up to the moment shown, as curves are drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, cast

from neurontools.client.history.axis import Axis
from neurontools.client.history.gathering import CoreStep, CoreSteps, QuantitySteps
from neurontools.client.history.quantities import Quantity
from neurontools.client.history.samples import Gathering, Samples

TREND_STEP_SECONDS = 5.0
_Step = TypeVar("_Step")


class _Steps(Gathering, Protocol[_Step]):
    @property
    def steps(self) -> dict[int, _Step]: ...


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity along an axis, with what it was at least, on average and at most. None is unknown."""

    values: tuple[float | None, ...]
    latest: float | None
    lowest: float | None
    mean: float | None
    highest: float | None


class Series:
    """The first `count` samples of some, of which the last is of the moment shown."""

    def __init__(self, samples: Samples, count: int | None = None) -> None:
        self._samples = samples
        self._count = len(samples) if count is None else count
        self._cut: dict[object, object] = {}  # steps without what came after the moment shown

    def __len__(self) -> int:
        return self._count

    def axis(self, cells: int, window_seconds: float, shown_unix_seconds: float = 0.0) -> Axis:
        """An axis of so many cells for so many seconds up to the moment shown."""
        shown_seconds = self._samples[self._count - 1].at_seconds if self._count else 0.0
        cells = max(1, cells)
        offset_seconds = shown_unix_seconds - shown_seconds
        return Axis(self._samples, self._count, cells, window_seconds / cells, shown_seconds, offset_seconds)

    def curve(self, quantity: Quantity, axis: Axis, per_cell: int = 1) -> Curve:
        """A quantity along an axis, `per_cell` values for each of its cells."""
        step_seconds = axis.cell_seconds / per_cell
        found = self._steps((quantity, step_seconds), partial(QuantitySteps, quantity, step_seconds), step_seconds)
        numbers = axis.steps(per_cell)
        shown = [None if number is None else found.get(number) for number in numbers]
        values = tuple(
            None if step is None else step.highest if quantity.is_level else step.total / step.count for step in shown
        )
        latest = quantity.of(self._samples[self._count - 1]) if self._count else None
        known = [found[number] for number in {number for number in numbers if number is not None} if number in found]
        if not known:
            return Curve(values, latest, None, None, None)
        return Curve(
            values,
            latest,
            min(step.lowest for step in known),
            sum(step.total for step in known) / sum(step.count for step in known),
            max(step.highest for step in known),
        )

    def core_steps(self, axis: Axis) -> list[CoreStep | None]:
        """The utilization of every core in each cell of an axis."""
        found = self._steps(axis.cell_seconds, partial(CoreSteps, axis.cell_seconds), axis.cell_seconds)
        return [None if number is None else found.get(number) for number in axis.steps()]

    def core_trend(self, first: int, count: int, length: int) -> list[float | None]:
        """The mean utilization of `count` physical cores from `first` on, in the last `length` steps of the trend."""
        if not self._count:
            return []
        found = self._steps(TREND_STEP_SECONDS, partial(CoreSteps, TREND_STEP_SECONDS), TREND_STEP_SECONDS)
        latest = int(self._samples[self._count - 1].at_seconds // TREND_STEP_SECONDS)
        steps = map(found.get, range(latest - length + 1, latest + 1))
        return [None if step is None else mean_of_cores(step, first, count) for step in steps]

    def _steps(self, key: object, empty: Callable[[], _Steps[_Step]], step_seconds: float) -> dict[int, _Step]:
        """What is gathered under a key; of the step of the moment shown, only what came up to it."""
        if key in self._cut:
            return cast("dict[int, _Step]", self._cut[key])
        found = self._samples.gathered(key, empty).steps
        if 0 < self._count < len(self._samples):
            last = int(self._samples[self._count - 1].at_seconds // step_seconds)
            anew = empty()
            for sample in self._samples.between(last * step_seconds, float("inf"), self._count):
                anew.add(sample)
            found = {**found, **anew.steps}
        self._cut[key] = found
        return found


def mean_of_cores(step: CoreStep, first: int, count: int) -> float | None:
    """The mean over some physical cores; None when it is known of none."""
    if count == 1:
        return step.means[first] if first < len(step.means) else None
    known = [value for value in step.means[first : first + count] if value is not None]
    return sum(known) / len(known) if known else None
