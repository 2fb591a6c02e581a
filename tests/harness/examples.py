"""How many examples a property test tries: all of them in `make test-all`, a quarter in `make test`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

Value = TypeVar("Value")
ALL = os.environ.get("ALL_EXAMPLES") == "1"


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
