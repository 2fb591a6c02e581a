"""How many examples are tried: all of them in CI, a quarter elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

Value = TypeVar("Value")
ALL = bool(os.environ.get("CI")) or os.environ.get("NEURONTOOLS_ALL_SAMPLES") == "1"


def examples(count: int) -> int:
    """So many where all are tried."""
    return count if ALL else max(5, count // 4)


def some(values: Sequence[Value], number: int) -> Sequence[Value]:
    """All of these where all are tried, else a quarter, for each number another; four numbers one after the other have
    all between them."""
    return values if ALL else values[number % 4 :: 4]


def load_profile() -> None:
    """What holds for every test: nothing depends on how fast the machine is."""
    settings.register_profile(
        "neurontools", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("neurontools")
