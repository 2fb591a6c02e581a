"""How many examples Hypothesis tries: all of them in CI, a quarter elsewhere."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

ALL = bool(os.environ.get("CI")) or os.environ.get("NEURONTOOLS_ALL_SAMPLES") == "1"


def examples(count: int) -> int:
    """So many where all are tried."""
    return count if ALL else max(5, count // 4)


def load_profile() -> None:
    """What holds for every test: nothing depends on how fast the machine is."""
    settings.register_profile(
        "neurontools", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("neurontools")
