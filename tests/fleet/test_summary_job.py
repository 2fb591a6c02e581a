"""What another host says of its jobs is bounded and makes sense, or is refused as a whole."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.fleet.summary_job import MOST_RUNS, JobStandstill, SummaryJob, rank_runs
from neurontools.model import Severity
from neurontools.model.jobs.slow_rank import JobSteps, RankSteps
from neurontools.model.training import STEP_PARTS

PARTS = (0.25,) * len(STEP_PARTS)
STEPS = JobSteps(2, PARTS, 1.5, 1.5, 1.5, RankSteps(0, 100, PARTS, 0.25, 0.25), 0.25)
STANDSTILL = JobStandstill("all_reduce", 1, 1, (1,), 70.0)
JOB = SummaryJob(
    "j", 2, 2, 4, 0.5, 1.0, 0.3, Severity.OK, "0123456789ab", (0, 1, 2), (3,), recent_steps=STEPS, standstill=STANDSTILL
)


def test_what_a_host_tells_is_taken() -> None:
    JOB.check()
    assert JOB.ranks == frozenset((0, 1))


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, rank_runs=(0, 1)),
        replace(JOB, rank_runs=(0, 1, 1) * (MOST_RUNS + 1)),
        replace(JOB, rank_runs=(0, 1, 2**31)),
        replace(JOB, rank_runs=(0, 0, 2)),
        replace(JOB, rank_runs=(2**30, 1, 2)),
        replace(JOB, missing_ranks=(2**30,)),
        replace(JOB, standstill=replace(STANDSTILL, absent_ranks=(2**30,))),
        replace(JOB, standstill=replace(STANDSTILL, seconds=nan)),
        replace(JOB, recent_steps=replace(STEPS, rank_count=0)),
        replace(JOB, recent_steps=replace(STEPS, rank_count=2**31)),
        replace(JOB, recent_steps=replace(STEPS, most_step_seconds=inf)),
        replace(JOB, recent_steps=replace(STEPS, others_wait_seconds=-1.0)),
        replace(JOB, recent_steps=replace(STEPS, part_seconds=PARTS[1:])),
        replace(JOB, recent_steps=replace(STEPS, part_seconds=(nan, *PARTS[1:]))),
        replace(JOB, recent_steps=replace(STEPS, busiest=replace(STEPS.busiest, part_seconds=()))),
        replace(JOB, recent_steps=replace(STEPS, busiest=replace(STEPS.busiest, most_wait_seconds=nan))),
    ],
)
def test_what_no_host_can_mean_is_refused(job: SummaryJob) -> None:
    with pytest.raises(ValueError, match="it has "):
        job.check()


@given(st.sets(st.integers(0, 511), min_size=1, max_size=64))
def test_ranks_are_told_exactly_or_not_at_all(ranks: set[int]) -> None:
    told = replace(JOB, rank_runs=rank_runs(ranks))
    told.check()
    assert told.ranks in (None, frozenset(ranks))
    assert len(told.rank_runs) <= 3 * MOST_RUNS


def test_a_rank_without_a_number_leaves_all_unknown() -> None:
    assert rank_runs([0, None, 2]) == ()
    assert rank_runs([]) == ()
