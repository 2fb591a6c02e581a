"""Whom the other ranks wait for: who waits least, and what takes that one longer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import TrainingCounters
from neurontools.model.jobs.slow_rank import LEAST_STEPS, RankSteps, slow_rank, steps_between

STEP_SECONDS = 1.0


def ranks(*waits: float, steps: int = 20, longer: Mapping[str, float] | None = None) -> list[RankSteps]:
    """Ranks of equal steps that compute when they do not wait, but for what the first does longer of other parts."""
    made = []
    for number, wait in enumerate(waits):
        parts = {"compute": STEP_SECONDS - wait, "host": 0.0, "input wait": 0.0}
        for name, seconds in (longer or {}).items() if number == 0 else ():
            parts[name] += seconds
            parts["compute"] -= seconds
        made.append(RankSteps(steps, wait, parts))
    return made


@pytest.mark.parametrize("part", ["input wait", "host", "compute"])
def test_who_waits_least_is_slow_and_what_takes_it_longer_is_told(part: str) -> None:
    found = slow_rank(ranks(0.1, 0.5, 0.5, 0.55, longer={part: 0.4} if part != "compute" else None))
    assert found is not None
    assert (found.index, found.part) == (0, part)
    assert found.gain_seconds == pytest.approx(0.4)
    assert found.gain_ratio == pytest.approx(0.4)


def test_the_gain_is_up_to_the_next_slowest() -> None:
    found = slow_rank(ranks(0.5, 0.0, 0.2))
    assert found is not None
    assert found.index == 1
    assert found.gain_seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    "compared",
    [
        ranks(0.1),
        ranks(0.45, 0.5, 0.5),
        ranks(0.1, 0.1, 0.9),  # two hold up the third: no single rank is the cause
        ranks(0.1, 0.5, steps=LEAST_STEPS - 1),
        [*ranks(0.1, steps=10), *ranks(0.5, steps=20)],  # not in step: nobody is held up
    ],
)
def test_nobody_is_called_slow_where_none_clearly_is(compared: list[RankSteps]) -> None:
    assert slow_rank(compared) is None


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64), st.integers(LEAST_STEPS, 1000))
def test_whoever_is_called_slow_waits_least(waits: list[float], steps: int) -> None:
    found = slow_rank(ranks(*waits, steps=steps))
    if found is not None:
        assert waits[found.index] == min(waits)
        assert found.gain_ratio >= 0.1


def counters(steps: int, wait: float | None, host: float | None = 0.0) -> TrainingCounters:
    return TrainingCounters(steps_total=steps, collective_wait_seconds_total=wait, host_seconds_total=host)


def test_what_was_done_between_two_reports_is_told_by_the_step() -> None:
    assert steps_between(counters(10, 1.0, 2.0), counters(20, 3.0, 7.0)) == RankSteps(10, 0.2, {"host": 0.5})


@pytest.mark.parametrize(
    ("before", "now"), [(counters(10, 1.0), counters(10, 1.0)), (counters(10, None), counters(20, None))]
)
def test_without_steps_or_waits_nothing_is_told(before: TrainingCounters, now: TrainingCounters) -> None:
    assert steps_between(before, now) is None
