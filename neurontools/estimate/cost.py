"""Dollars: time and prices, multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.estimate.interval import Interval
from neurontools.estimate.prices import Price

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a training costs at one price, of the whole instance, in US dollars; None where samples aren't known."""

    price: Price
    thousand_steps_usd: Interval
    million_samples_usd: Interval | None
    epoch_usd: Interval | None


def usd(price_per_hour: float, seconds: float) -> float:
    """What so many seconds cost."""
    return price_per_hour * seconds / _SECONDS_PER_HOUR


def cost(price: Price, step_seconds: Interval, samples_per_step: float | None, epoch_samples: int | None) -> Cost:
    """The cost of steps that take so long and so many samples, of all workers together."""
    step_usd = step_seconds * usd(price.usd_per_hour, 1.0)
    sample_usd = step_usd * (1 / samples_per_step) if samples_per_step else None
    return Cost(
        price=price,
        thousand_steps_usd=step_usd * 1e3,
        million_samples_usd=None if sample_usd is None else sample_usd * 1e6,
        epoch_usd=None if sample_usd is None or epoch_samples is None else sample_usd * epoch_samples,
    )
