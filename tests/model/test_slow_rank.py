"""Whom the other ranks wait for: who waits least, and what takes that one longer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model.jobs.slow_rank import JobSteps, RankSteps, job_steps, slow_rank
from neurontools.model.training import STEP_PARTS

STEP_SECONDS = 1.0


def ranks(*waits: float, longer: Mapping[str, float] | None = None, step: float = STEP_SECONDS) -> list[RankSteps]:
    """Ranks of equal steps that compute when they do not wait, but for what the first does longer of other parts."""
    made = []
    for number, wait in enumerate(waits):
        parts = {"collective wait": wait, "compute": step - wait}
        for name, seconds in (longer or {}).items() if number == 0 else ():
            parts[name] = seconds
            parts["compute"] -= seconds
        seconds_by_part = tuple(parts.get(part.name, 0.0) for part in STEP_PARTS)
        made.append(RankSteps(number, 100 + number, seconds_by_part, wait, wait))
    return made


def of(*waits: float, longer: Mapping[str, float] | None = None) -> JobSteps:
    return job_steps(ranks(*waits, longer=longer))


@pytest.mark.parametrize("part", ["input wait", "host", "transfer", "compile", "compute"])
def test_who_waits_least_is_slow_and_what_takes_it_longer_is_told(part: str) -> None:
    found = slow_rank([of(0.1, 0.5, 0.5, 0.55, longer={part: 0.4} if part != "compute" else None)])
    assert found is not None
    assert (found.rank.rank, found.rank.pid, found.part) == (0, 100, part)
    assert found.gain_seconds == pytest.approx(0.4)
    assert found.gain_ratio == pytest.approx(0.4)


def test_the_gain_is_up_to_the_next_slowest_wherever_that_is() -> None:
    for hosts in ([of(0.5, 0.0, 0.2)], [of(0.5, 0.0), of(0.2, 0.5)], [of(0.5, 0.2), of(0.0)]):
        found = slow_rank(hosts)
        assert found is not None
        assert hosts[found.index].busiest is found.rank
        assert found.rank.most_wait_seconds == 0.0
        assert found.gain_seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    "hosts",
    [
        [of(0.1)],
        [of(0.45, 0.5, 0.5)],
        [of(0.1, 0.1, 0.9)],  # two hold up the third: no single rank is the cause
        [of(0.1, 0.9), of(0.1)],
        [of(0.1, 0.5), job_steps(ranks(0.5, 0.5, step=2.0))],  # not in step: nobody is held up
    ],
)
def test_nobody_is_called_slow_where_none_clearly_is(hosts: list[JobSteps]) -> None:
    assert slow_rank(hosts) is None


def test_who_waits_least_in_one_span_alone_is_not_called_slow() -> None:
    first, *others = ranks(0.1, 0.5, 0.5)
    odd = RankSteps(first.rank, first.pid, first.part_seconds, 0.0, 0.45)
    assert slow_rank([job_steps([odd, *others])]) is None
    steady = RankSteps(first.rank, first.pid, first.part_seconds, 0.0, 0.2)
    assert slow_rank([job_steps([steady, *others])]) is not None


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64))
def test_whoever_is_called_slow_waits_least(waits: list[float]) -> None:
    found = slow_rank([of(*waits)])
    if found is not None:
        assert found.rank.most_wait_seconds == min(waits)
        assert found.gain_ratio >= 0.1


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64), st.integers(1, 64))
def test_it_is_the_same_rank_however_the_ranks_are_spread_over_hosts(waits: list[float], here: int) -> None:
    all_ranks = ranks(*waits)
    one = slow_rank([job_steps(all_ranks)])
    many = slow_rank([job_steps(all_ranks[at : at + here]) for at in range(0, len(all_ranks), here)])
    assert (one and one.rank.pid) == (many and many.rank.pid)
    if one is not None and many is not None:
        assert many.part == one.part
        assert many.gain_seconds == one.gain_seconds
