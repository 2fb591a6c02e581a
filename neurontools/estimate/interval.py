"""A quantity of which only the ends are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, both included, in one unit; `low` is never above `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"from {self.low} to {self.high} is no interval")

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def middle(self) -> float:
        """The geometric middle: as many times above the low end as below the high one."""
        return float((self.low * self.high) ** 0.5)

    def inverse(self, numerator: float = 1.0) -> Interval:
        """The interval of `numerator` over the quantity, which is above 0."""
        return Interval(numerator / self.high, numerator / self.low)

    def text(self, unit: Callable[[float], str]) -> str:
        """Both ends as `unit` writes them: "1.2 ms to 3.4 ms"; one of them where they read the same."""
        low, high = unit(self.low), unit(self.high)
        return low if low == high else f"{low} to {high}"
