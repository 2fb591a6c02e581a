"""What following a piece of advice saves: seconds of a step, and dollars of 1,000 steps at the list price."""

from __future__ import annotations

from collections.abc import Callable

from neurontools.estimate.advice import RunFacts, Saving
from neurontools.estimate.calibration import Interval
from neurontools.estimate.instances import list_prices
from neurontools.estimate.training import WhatIfKind, what_ifs

COLLECTIVE_SECONDS = Interval(58e-6, 300e-6)
"""The latency of a small collective. Source: AWS's guide to nccom-test."""

LEAST_SECONDS = 1e-6
"""A saving below this time of a step is not reported, because no step of a real model is so short."""

_SECONDS_PER_HOUR = 3600.0
_STEPS = 1000


def find_saving(rule: str, facts: RunFacts) -> Saving | None:
    """Predicts what the fix of a rule saves on the instance type of the run. Returns None if no model predicts it.

    Also returns None for savings below LEAST_SECONDS.
    """
    predict = _SECONDS.get(rule)
    seconds = None if predict is None else predict(facts)
    if seconds is None or seconds.high < LEAST_SECONDS:
        return None
    price = next(iter(list_prices(facts.hardware.name)), None)
    usd = None if price is None else seconds * (_STEPS * price.usd_per_hour / _SECONDS_PER_HOUR)
    return Saving(seconds, usd, facts.hardware.name)


def _of_change(kind: WhatIfKind) -> Callable[[RunFacts], Interval | None]:
    """Returns a function that predicts the saving of one kind of change."""

    def seconds(facts: RunFacts) -> Interval | None:
        for each in what_ifs(facts.run, facts.hardware, None):
            if each.kind is kind and each.speedup is not None:
                ratios = [1 - 1 / speedup for speedup in (each.speedup.low, each.speedup.high)]
                total = facts.step.total
                return Interval(max(0.0, total.low * min(ratios)), max(0.0, total.high * max(ratios)))
        return None

    return seconds


def _at_most(seconds: float) -> Interval:
    return Interval(0.0, max(0.0, seconds))


def _fewer_executions(facts: RunFacts) -> Interval | None:
    surplus = 1 - (facts.run.batches or 1.0) / facts.run.executions
    return facts.step.host * surplus if surplus > 0 else None


def _overlap(facts: RunFacts) -> Interval:
    """Returns the time of a step in which the host can trace while the device computes."""
    return _at_most(min(facts.step.host.high, facts.step.compute.high))


def _per_step(counter: str) -> Callable[[RunFacts], Interval]:
    return lambda facts: _at_most(facts.counter(counter) / facts.run.steps_total)


_SECONDS: dict[str, Callable[[RunFacts], Interval | None]] = {
    "float32": _of_change(WhatIfKind.BFLOAT16),
    "batches-per-execution": _of_change(WhatIfKind.BATCHES_PER_EXECUTION),
    "two-executions": _fewer_executions,
    "host-read": _overlap,
    "loader-wait": _per_step("loader_wait_seconds"),
    "checkpoint-cost": _per_step("save_seconds"),
    "small-collectives": lambda facts: COLLECTIVE_SECONDS * facts.run.collectives,
}
