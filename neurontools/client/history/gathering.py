"""Samples gathered by steps of the timeline: what a column of a plot or of a heat map shows.

Steps begin at multiples of their length, so that a plot moves on once a step and what it showed stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.client.history.quantities import Quantity
from neurontools.client.history.samples import Sample


@dataclass(slots=True)
class Step:
    """What a quantity was in one step."""

    total: float
    count: int
    lowest: float
    highest: float

    def take(self, value: float) -> None:
        """Take one more value."""
        self.total += value
        self.count += 1
        if value < self.lowest:
            self.lowest = value
        elif value > self.highest:
            self.highest = value


class QuantitySteps:
    """One quantity, by number of the step."""

    def __init__(self, quantity: Quantity, step_seconds: float) -> None:
        self.steps: dict[int, Step] = {}
        self._quantity = quantity
        self.step_seconds = step_seconds

    def add(self, sample: Sample) -> None:
        """Take a sample; in any order."""
        value = self._quantity.of(sample)
        if value is None:
            return
        number = int(sample.at_seconds // self.step_seconds)
        step = self.steps.get(number)
        if step is None:
            self.steps[number] = Step(value, 1, value, value)
        else:
            step.take(value)

    def forget(self, first: int) -> None:
        """Forget the steps before the one of this number."""
        _forget(self.steps, first)


@dataclass(slots=True)
class CoreStep:
    """The utilization of each physical core in one step, and who held it at its end; None is unknown."""

    means: list[float | None]
    owners: tuple[int, ...]
    at_seconds: float  # of the latest sample
    counts: list[int]


class CoreSteps:
    """The utilization of every core, by number of the step."""

    def __init__(self, step_seconds: float) -> None:
        self.steps: dict[int, CoreStep] = {}
        self.step_seconds = step_seconds

    def add(self, sample: Sample) -> None:
        """Take a sample; in any order."""
        number = int(sample.at_seconds // self.step_seconds)
        step = self.steps.get(number)
        values = sample.utilization_ratio
        if step is None or len(step.means) != len(values):
            means = [value if value == value else None for value in values]  # NaN is not itself
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

    def forget(self, first: int) -> None:
        """Forget the steps before the one of this number."""
        _forget(self.steps, first)


def _forget(steps: dict[int, Step] | dict[int, CoreStep], first: int) -> None:
    for number in [number for number in steps if number < first]:
        del steps[number]
