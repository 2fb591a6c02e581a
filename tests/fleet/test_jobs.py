"""Jobs over hosts: what is one run, who is missing, and whom all wait for wherever its rank runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.jobs import AbsentRank, FleetJob, FleetStandstill, MissingRank, fleet_jobs
from neurontools.fleet.states import HostState
from neurontools.fleet.summary import JobStandstill, summarize_host
from neurontools.model import Job, Process, RecentSteps, Severity, Snapshot, TrainingCounters
from neurontools.model.jobs import JobState
from neurontools.model.process import STEP_PARTS
from neurontools.views.fleet_page import problem_text
from tests.harness.fleet import live, lost
from tests.harness.snapshots import rank_of, snapshot_of

RUN = "0123456789ab"
WAITS = (0.5, 0.5, 0.5, 0.0)  # of a step of one second: the last rank holds up the others


def steps(wait: float, part: str = "input wait", spread: float = 0.0) -> RecentSteps:
    """A step of a second: waiting, and the rest of it in one part."""
    seconds = {"collective wait": wait, part: 1.0 - wait}
    return RecentSteps(16, tuple(seconds.get(each.name, 0.0) for each in STEP_PARTS), wait - spread, wait + spread)


def rank(number: int, wait: float | None, *, world: int = 4, run_id: str | None = RUN, here: int = 2) -> Process:
    return rank_of(
        number,
        Job("torchrun exp1", number, world, run_id, number // here * here, here),
        training=TrainingCounters(steps_total=50, last_step_at_seconds=0.0),
        recent_steps=None if wait is None else steps(wait),
    )


def host(ranks: Iterable[Process]) -> Snapshot:
    return replace(snapshot_of("trn1.32xlarge", list(ranks)), taken_at_seconds=1.0)


def hosts(waits: tuple[float | None, ...] = WAITS, here: int = 2, **changes: object) -> list[HostState]:
    ranks = [rank(number, wait, world=len(waits), here=here, **changes) for number, wait in enumerate(waits)]  # type: ignore[arg-type]
    return [live(f"host-{at // here}", host(ranks[at : at + here])) for at in range(0, len(ranks), here)]


def standing(of: HostState, **changes: object) -> HostState:
    """A host whose only job does this."""
    assert of.summary is not None
    (job,) = of.summary.jobs
    return replace(of, summary=replace(of.summary, jobs=(replace(job, **changes),)))  # type: ignore[arg-type]


def only(states: Iterable[HostState]) -> FleetJob:
    (job,) = fleet_jobs(states)
    return job


def test_ranks_of_one_run_are_one_job_wherever_they_are() -> None:
    job = only(hosts())
    assert (job.name, job.host_names) == ("torchrun exp1", ("host-0", "host-1"))
    assert (job.rank_count, job.world_size, job.missing_ranks) == (4, 4, ())
    assert (job.state, job.state_seconds) == (JobState.TRAINING, 1.0)
    assert job.step_seconds is not None
    assert (job.step_seconds.least, job.step_seconds.median, job.step_seconds.most) == (1.0, 1.0, 1.0)


def test_what_no_launcher_says_is_one_run_is_not_and_two_with_the_same_ranks_are_two() -> None:
    alone = fleet_jobs(hosts(run_id=None))
    assert [job.name for job in alone] == ["torchrun exp1"] * 2
    assert [job.host_names for job in alone] == [("host-0",), ("host-1",)]
    twice = [live(name, host([rank(0, 0.1), rank(1, 0.1)])) for name in ("a", "b")]
    assert [job.host_names for job in fleet_jobs(twice)] == [("a",), ("b",)]


def test_the_slow_rank_is_named_with_its_host_and_part() -> None:
    found = only(hosts()).slow_rank
    assert found is not None
    assert (found.rank, found.host_name, found.pid, found.part) == (3, "host-1", 103, "input wait")
    assert found.gain_ratio == pytest.approx(0.5)
    assert problem_text(only(hosts())) == "rank 3 of host-1 (input wait): 50% of each step"


def test_nobody_is_called_slow_where_none_clearly_is_or_not_all_are_known() -> None:
    odd = replace(rank(3, 0.25), recent_steps=steps(0.25, spread=0.25))  # one odd span is chance
    for states in (
        hosts((0.5, 0.5, 0.5, 0.45)),
        hosts((0.5, 0.0, 0.5, 0.0)),  # one of each host: no single rank is the cause
        hosts((0.5, 0.5, 0.5, None)),
        hosts()[1:],  # on the other host there may be a slower one
        [live("a", host([rank(0, 0.5), rank(1, 0.5)])), live("b", host([rank(2, 0.5), odd]))],
    ):
        assert only(states).slow_rank is None


@given(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=64), st.sampled_from([1, 2, 3, 8]))
def test_hosts_find_together_whom_one_host_would_find_that_had_all_ranks(waits: list[float], here: int) -> None:
    one, many = only(hosts(tuple(waits), len(waits))), only(hosts(tuple(waits), here))
    assert (one.slow_rank is None) == (many.slow_rank is None)
    if one.slow_rank is not None and many.slow_rank is not None:
        assert (one.slow_rank.rank, one.slow_rank.part) == (many.slow_rank.rank, many.slow_rank.part)
        assert many.slow_rank.gain_seconds == pytest.approx(one.slow_rank.gain_seconds, abs=1e-9)


def test_missing_ranks_are_told_as_far_as_they_are_known() -> None:
    job = only([live("a", host([rank(0, 0.1), rank(1, 0.1)])), live("b", host([rank(2, 0.1)]))])
    assert (job.rank_count, job.world_size, job.missing_ranks) == (3, 4, (MissingRank(3, "b", False),))
    assert problem_text(job) == "rank 3 of b is missing"
    first, second = hosts()
    job = only([first, lost("host-1", "gone", second)])
    assert job.missing_ranks == (MissingRank(2, "host-1", True), MissingRank(3, "host-1", True))
    assert problem_text(job) == "ranks 2-3 of host-1 (lost) are missing"
    assert job.slow_rank is None
    unseen = HostState(HostAddress("host-1", Reach.SSH, "host-1"))
    assert problem_text(only([unseen, first])) == "ranks 2-3 are missing"
    nameless = replace(rank(0, 0.1), job=Job("Slurm job 7", None, 4, RUN))
    assert problem_text(only([live("a", host([nameless]))])) == "3 ranks missing"


def test_while_one_rank_compiles_those_who_wait_for_it_are_not_stuck() -> None:
    compiling = replace(rank(3, 0.0), training=TrainingCounters(steps_total=50, compiling_since_seconds=-9.0))
    stuck = standing(hosts()[0], state=JobState.STUCK)
    states = [stuck, live("b", host([rank(2, 0.5), compiling]))]
    assert (only(states).state, only(states).state_seconds) == (JobState.COMPILING, 10.0)


def test_mfu_and_steps_are_of_the_whole_job() -> None:
    first, second = (standing(each, severity=Severity.OK) for each in hosts())
    whole = only(
        [standing(first, mfu_ratio=0.2, steps_per_second=3.0), standing(second, mfu_ratio=0.4, steps_per_second=2.0)]
    )
    assert whole.mfu_ratio == pytest.approx(0.3)
    assert whole.steps_per_second == 2.0


def test_sixty_four_ranks_of_a_host_fit_its_summary_in_whatever_order_they_are_dealt() -> None:
    for dealt in (range(64), range(7, 512, 8)):
        ranks = [replace(rank(number, 0.1, world=512), core_indices=(at % 32,)) for at, number in enumerate(dealt)]
        (job,) = summarize_host(host(ranks), "a").jobs
        assert (job.ranks, len(job.rank_runs)) == (frozenset(dealt), 3)
    scattered = [rank(number * number, 0.1, world=512) for number in range(20)]
    assert summarize_host(host(scattered), "a").jobs[0].ranks is None


def test_who_has_not_come_to_a_collective_is_told_with_its_host() -> None:
    first, second = hosts()
    waits = {"state": JobState.WAITING, "state_seconds": 90.0}
    waiting = standing(first, **waits, standstill=JobStandstill("all_reduce", 2, 0, (), 89.0))
    stuck = standing(second, state=JobState.STUCK, standstill=JobStandstill("all_reduce", 1, 1, (3,), 88.0))
    job = only([waiting, stuck])
    assert (job.state, job.standstill) == (
        JobState.STUCK,
        FleetStandstill("all_reduce", 3, 1, (AbsentRank(3, "host-1"),), 88.0),
    )
    assert problem_text(job) == "3 ranks wait in all_reduce for rank 3 of host-1"
    nobody = only([waiting, second])
    assert problem_text(replace(nobody, slow_rank=None)) == "", "the other host trains, as far as it has told"
    alone = only([waiting, standing(second, **waits)])
    assert problem_text(alone) == "2 ranks wait in all_reduce for ranks 2-3 of host-1"


def test_where_all_have_come_and_none_gets_on_the_job_is_stuck() -> None:
    def job(seconds: float) -> FleetJob:
        found = JobStandstill("barrier", 2, 0, (), seconds)
        return only([standing(each, state=JobState.WAITING, standstill=found) for each in hosts()])

    assert job(20.0).state == JobState.WAITING
    assert job(70.0).state == JobState.STUCK
    assert problem_text(job(70.0)) == "4 ranks wait in barrier, and none is absent"


def test_a_summary_tells_who_waits_only_while_no_step_is_made() -> None:
    def told(since_step: float) -> JobStandstill | None:
        counters = TrainingCounters(
            steps_total=50,
            last_step_at_seconds=100.0 - since_step,
            collective_since_seconds=100.5 - since_step,
            latest_collective="all_reduce",
        )
        idle = replace(counters, collective_since_seconds=None)
        ranks = [replace(rank(0, 0.5), training=counters), replace(rank(1, 0.5), training=idle)]
        (job,) = summarize_host(replace(host(ranks), taken_at_seconds=100.0), "a").jobs
        return job.standstill

    assert told(1.0) is None
    assert told(30.0) == JobStandstill("all_reduce", 1, 1, (1,), 29.5)
