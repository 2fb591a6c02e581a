"""Jobs of a snapshot: who works together, and whom the other ranks wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import (
    DeviceMemory,
    Finding,
    Health,
    Process,
    Severity,
    Snapshot,
    TrainingCounters,
    TrainingRates,
)
from neurontools.model.jobs import JobSteps, RankSteps, RunningJob, combine_rank_steps, find_straggler, running_jobs
from neurontools.model.process import STEP_PARTS, Job
from tests.harness.snapshots import process_of, rank_of, snapshot_of

SECONDS = 50.0


def rank(number: int, *, steps_per_second: float | None = 20.0) -> Process:
    """A rank that has counted for 50 s."""
    return rank_of(
        number,
        Job("Slurm job 7", number, 8),
        measured_at_seconds=1000.0,
        counted_since_seconds=1000.0 - SECONDS,
        training=TrainingCounters(steps_total=1000),
        training_rates=TrainingRates(steps_per_second=steps_per_second),
    )


def host(*processes: Process, busy: tuple[float | None, ...] = ()) -> Snapshot:
    empty = snapshot_of("trn1.32xlarge", list(processes))
    memory = DeviceMemory(tensors_bytes=1000)
    held = [
        replace(core, owner_pid=100, utilization_ratio=ratio, flops_per_second=1e12, memory=memory)
        for core, ratio in zip(empty.cores, busy, strict=False)
    ]
    return replace(empty, cores=(*held, *empty.cores[len(held) :]))


def only(snapshot: Snapshot) -> RunningJob:
    (job,) = running_jobs(snapshot)
    return job


ALONE = replace(process_of(7, "serve", (4,)), core_indices=(8,), neuroncore_indices=(8,))


def test_ranks_of_one_name_are_one_job_by_rank_and_others_are_alone() -> None:
    watching = replace(process_of(9, "neuron-monitor", (0,)), runtime_version=None)
    first, second = running_jobs(host(ALONE, watching, rank(1), rank(0)))
    assert (first.name, [each.process.pid for each in first.ranks], first.is_several) == (None, [7], False)
    assert (second.name, [each.number for each in second.ranks], second.world_size) == ("Slurm job 7", [0, 1], 8)
    assert second.neuroncore_indices == (0, 1)


def test_a_job_adds_up_its_cores_and_has_the_steps_of_its_slowest_rank() -> None:
    job = only(host(rank(0), rank(1, steps_per_second=19.0), busy=(0.5, 1.0)))
    assert job.utilization_ratio == 0.75
    assert job.flops_per_second == 2e12
    assert job.device_memory_bytes == 2000
    assert job.steps_per_second == 19.0


def test_what_is_not_known_is_none() -> None:
    silent = replace(rank(0), training=None, training_rates=None)
    job = only(host(silent, busy=(None,)))
    assert (job.utilization_ratio, job.steps_per_second) == (None, None)
    assert job.last_execution_at_unix_seconds is None


def test_a_job_has_the_findings_on_its_processes() -> None:
    mine = Finding("stuck", Severity.CRITICAL, "reason", "action", 0.0, (0,), 100, (100, 101))
    other = Finding("idle", Severity.NOTICE, "reason", "action", 0.0, (4,), 7, (7,))
    of_device = Finding("ecc_corrected", Severity.WARNING, "reason", "action", 0.0, (0,))
    judged = replace(host(ALONE, rank(0), rank(1)), health=Health(findings=(mine, of_device, other)))
    assert [job.findings for job in running_jobs(judged)] == [(other,), (mine,)]


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
    return combine_rank_steps(ranks(*waits, longer=longer))


@pytest.mark.parametrize("part", ["input wait", "host", "transfer", "compile", "compute"])
def test_who_waits_least_is_slow_and_what_takes_it_longer_is_told(part: str) -> None:
    found = find_straggler([of(0.1, 0.5, 0.5, 0.55, longer={part: 0.4} if part != "compute" else None)])
    assert found is not None
    assert (found.rank.rank, found.rank.pid, found.part) == (0, 100, part)
    assert found.gain_seconds == pytest.approx(0.4)
    assert found.gain_ratio == pytest.approx(0.4)


def test_the_gain_is_up_to_the_next_slowest_wherever_that_is() -> None:
    for hosts in ([of(0.5, 0.0, 0.2)], [of(0.5, 0.0), of(0.2, 0.5)], [of(0.5, 0.2), of(0.0)]):
        found = find_straggler(hosts)
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
        [of(0.1, 0.5), combine_rank_steps(ranks(0.5, 0.5, step=2.0))],  # not in step: nobody is held up
    ],
)
def test_nobody_is_called_slow_where_none_clearly_is(hosts: list[JobSteps]) -> None:
    assert find_straggler(hosts) is None


def test_who_waits_least_in_one_span_alone_is_not_called_slow() -> None:
    first, *others = ranks(0.1, 0.5, 0.5)
    odd = RankSteps(first.rank, first.pid, first.part_seconds, 0.0, 0.45)
    assert find_straggler([combine_rank_steps([odd, *others])]) is None
    steady = RankSteps(first.rank, first.pid, first.part_seconds, 0.0, 0.2)
    assert find_straggler([combine_rank_steps([steady, *others])]) is not None


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64))
def test_whoever_is_called_slow_waits_least(waits: list[float]) -> None:
    found = find_straggler([of(*waits)])
    if found is not None:
        assert found.rank.most_wait_seconds == min(waits)
        assert found.gain_ratio >= 0.1


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=64), st.integers(1, 64))
def test_it_is_the_same_rank_however_the_ranks_are_spread_over_hosts(waits: list[float], here: int) -> None:
    all_ranks = ranks(*waits)
    one = find_straggler([combine_rank_steps(all_ranks)])
    many = find_straggler([combine_rank_steps(all_ranks[at : at + here]) for at in range(0, len(all_ranks), here)])
    assert (one and one.rank.pid) == (many and many.rank.pid)
    if one is not None and many is not None:
        assert many.part == one.part
        assert many.gain_seconds == one.gain_seconds
