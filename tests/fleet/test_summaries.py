"""What a host says of itself in short: its snapshot, within a bound; what makes no sense is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.fleet import summary as limits
from neurontools.fleet.summary import HostSummary, JobStandstill, SummaryJob, encode_rank_runs, summarize_host
from neurontools.model import (
    Finding,
    Health,
    Job,
    LatencyPercentiles,
    ModelPlacement,
    RecentSteps,
    ServedModel,
    ServedModelRates,
    Severity,
    Snapshot,
    TrainingCounters,
)
from neurontools.model.jobs import JobSteps, RankSteps
from neurontools.model.process import STEP_PARTS
from neurontools.model.snapshot import MOST_DEVICES
from neurontools.rpc.convert import from_message, to_message
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import snapshot_of


def owned(*users: str | None) -> Snapshot:
    """A host with a process of each of these, each a job of its own; the first holds most cores."""
    return replace(
        snapshot_of("trn2.48xlarge"),
        processes=tuple(
            replace(process, user=user, job=Job(f"job-{at}"), neuroncore_indices=tuple(range(at, len(users))))
            for at, (process, user) in enumerate(zip(burst().processes, users, strict=False))
        ),
    )


@cache
def burst() -> Snapshot:
    host = ScenarioHost("trn1.32xlarge", "ecc-burst")
    for seconds in range(0, 200, 10):
        host.at(float(seconds))
    return host.at(200.0)


def full_model(name: str) -> ServedModel:
    latency = LatencyPercentiles(*[1e-9] * 8)
    rates = ServedModelRates(1e-9, 1e-9, 1.0, 1e-9, latency, latency)
    return ServedModel(name, (ModelPlacement(2**20, 1.0, 2**50),), 1, queue_depth=2**31, rates=rates)


def test_an_idle_host_is_all_free() -> None:
    summary = summarize_host(snapshot_of("trn2.48xlarge"), "a")
    assert (summary.neuroncore_count, summary.free_neuroncore_count, summary.held_neuroncore_count) == (64, 64, 0)
    assert (summary.process_count, summary.jobs, summary.utilization_ratio, summary.mfu_ratio) == (0, (), None, None)
    assert len(summary.devices) == 16


def test_nobody_judged_is_not_well() -> None:
    summary = summarize_host(replace(snapshot_of("trn1.2xlarge"), health=None), "a")
    assert summary.severity is None
    assert summary.devices[0].severity is None
    assert summarize_host(replace(snapshot_of("trn1.2xlarge"), health=Health((0,))), "a").severity is Severity.OK


def test_a_device_that_is_missing_has_its_place() -> None:
    snapshot, every = snapshot_of("trn1.32xlarge"), tuple(range(16))
    missing = Finding("device_missing", Severity.CRITICAL, "gone", "restart", 1.0, device_indices=(3,))
    there = tuple(device for device in snapshot.devices if device.index != 3)
    summary = summarize_host(replace(snapshot, devices=there, health=Health(every, (), (missing,))), "a")
    assert [cell.index for cell in summary.devices] == list(every)
    assert [cell.index for cell in summary.devices if not cell.is_present] == [3]
    assert summary.devices[3].severity == Severity.CRITICAL
    assert summary.devices[3].utilization_ratio is None
    # A finding names all devices that a host can have.
    alike = tuple(Finding("ecc", Severity.WARNING, "errors", "wait", 1.0, device_indices=(index,)) for index in every)
    (told,) = summarize_host(replace(snapshot, health=Health(every, (), alike)), "a").findings
    assert told.device_indices == every


def test_it_goes_over_the_wire_as_it_is() -> None:
    summary = replace(summarize_host(owned("ada", "bob", "eve", "mia"), "host-1"), utilization_ratio=None, jobs=())
    assert summary.further_users == ("mia",)
    read = from_message(HostSummary, to_message(summary))
    assert read == summary


def test_whose_the_jobs_are() -> None:
    summary = summarize_host(owned("ada", None, "bob", "ada", "eve"), "a")
    assert [(job.users, job.user_count) for job in summary.jobs] == [(("ada",), 1), ((), None), (("bob",), 1)]
    assert (summary.further_users, summary.users, summary.user_count) == (("eve",), ("ada", "bob", "eve"), 3)
    hidden = summary.without_users
    assert (hidden.users, hidden.user_count) == ((), None)
    assert all(job.users == () and job.user_count is None for job in hidden.jobs)
    assert [job.name for job in hidden.jobs] == [job.name for job in summary.jobs]
    assert (hidden.job_count, hidden.process_count) == (5, 5)
    assert summarize_host(snapshot_of("trn1.2xlarge"), "a").user_count == 0
    assert summarize_host(owned(None), "a").user_count is None, "not known, which is not nobody"
    (process,) = owned(None).processes
    nameless = summarize_host(replace(owned(None), processes=(replace(process, uid=1000),)), "a")
    assert (nameless.users, nameless.user_count) == (("1000",), 1)


def test_of_many_users_the_number_is_told() -> None:
    names = tuple(f"user-{number:02d}" for number in range(20))
    each = owned(*names)
    (job,) = summarize_host(
        replace(each, processes=tuple(replace(one, job=Job("one")) for one in each.processes)), "a"
    ).jobs
    assert (job.users, job.user_count) == (names[:4], 20)
    summary = summarize_host(each, "a")
    assert (summary.users, summary.user_count) == (names[:11], 20)


def test_a_user_is_called_the_same_however_much_else_is_told() -> None:
    names, every = tuple(letter * 32 for letter in "abcdefghijk"), tuple(range(16))
    kinds = ("e" * 99, "f" * 99, "g" * 99)
    findings = tuple(
        Finding(kind, Severity.CRITICAL, kind, "x", 1.7e9, device_indices=every, job="j" * 99) for kind in kinds
    )
    crowded = replace(owned(*names), health=Health(every, (), findings), daemon_version="v" * 99)
    ids = dict.fromkeys(("instance_id", "ultraserver_id", "driver_version"), "i" * 99)
    crowded = replace(crowded, instance=replace(crowded.instance, **ids))  # type: ignore[arg-type]
    alone, told = summarize_host(owned(*names), "h" * 99), summarize_host(crowded, "h" * 99)
    assert len(told.host_name) < len(alone.host_name), "all else is told shorter"
    assert (alone.users, told.users) == (names, names[:7])
    assert told.user_count == 11
    assert summarize_host(owned("u" * 33), "a").users == ("u" * 29 + "…",)


@pytest.mark.parametrize("letter", ["x", "é", "語", "🚀"])
def test_however_long_the_names_are_it_stays_within_its_bound(letter: str) -> None:
    text = letter * 500
    snapshot = burst()
    findings = tuple(
        Finding(text, Severity.CRITICAL, text, text + str(number), 1.7e9, tuple(range(16)), job=text + str(number))
        for number in range(40)
    )
    processes = tuple(
        replace(
            process,
            user=f"{number}{text}",
            job=Job(
                f"{number % 3}{text}", 2**20 - (number * number) % 500, 2**31, f"{number % 3:012x}", 2**20 - 600, 600
            ),
            training=TrainingCounters(
                steps_total=9,
                last_step_at_seconds=1e-9,
                latest_collective=text,
                collective_since_seconds=1e-9 if number < 6 else None,
            ),
            reporting=True,
            recent_steps=RecentSteps(10**9, (1e-9,) * len(STEP_PARTS), 1e-9, 1e9),
            served_models=(full_model(f"{number}{text}"),),
        )
        for number, process in enumerate(snapshot.processes)
    )
    instance = replace(
        snapshot.instance, instance_id=text, ultraserver_id=text, driver_version=text, instance_type=text
    )
    full = replace(
        snapshot,
        instance=instance,
        processes=processes,
        synthetic_load=text,
        daemon_version=text,
        health=Health(tuple(range(16)), (), findings),
    )
    summary = summarize_host(full, text)
    assert len(to_message(summary).SerializeToString()) <= limits.MOST_BYTES
    assert summary.critical_count == 40
    assert summary.host_name.startswith(letter * 5)
    assert summary.host_name.endswith("…")
    assert len(summary.jobs) == 3
    assert (summary.models, summary.model_count) == ((), len(processes))
    assert summary.user_count == len(processes)
    assert len(summary.users) <= summary.user_count
    assert all(job.standstill is not None and len(job.standstill.absent_ranks) == 4 for job in summary.jobs)
    assert [job.recent_steps is not None for job in summary.jobs] == [True, False, False]
    assert all(len(job.missing_ranks) == 4 and job.run_id for job in summary.jobs)


PARTS = (0.25,) * len(STEP_PARTS)
STEPS = JobSteps(2, PARTS, 1.5, 1.5, 1.5, RankSteps(0, 100, PARTS, 0.25, 0.25), 0.25)
STANDSTILL = JobStandstill("all_reduce", 1, 1, (1,), 70.0)
JOB = SummaryJob(
    "j", 2, 2, 4, 0.5, 1.0, 0.3, Severity.OK, "0123456789ab", (0, 1, 2), (3,), recent_steps=STEPS, standstill=STANDSTILL
)


def with_steps(**changes: object) -> SummaryJob:
    return replace(JOB, recent_steps=replace(STEPS, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "job",
    [
        *(replace(JOB, rank_runs=runs) for runs in ((0, 1), (0, 1, 1) * (limits.MOST_RUNS + 1), (0, 1, 2**31))),
        *(replace(JOB, rank_runs=runs) for runs in ((0, 0, 2), (2**30, 1, 2))),
        replace(JOB, missing_ranks=(2**30,)),
        replace(JOB, standstill=replace(STANDSTILL, absent_ranks=(2**30,))),
        replace(JOB, standstill=replace(STANDSTILL, seconds=nan)),
        *(with_steps(rank_count=count) for count in (0, 2**31)),
        with_steps(most_step_seconds=inf),
        with_steps(others_wait_seconds=-1.0),
        *(with_steps(part_seconds=parts) for parts in (PARTS[1:], (nan, *PARTS[1:]))),
        with_steps(busiest=replace(STEPS.busiest, part_seconds=())),
        with_steps(busiest=replace(STEPS.busiest, most_wait_seconds=nan)),
    ],
)
def test_what_no_host_can_mean_is_refused(job: SummaryJob) -> None:
    with pytest.raises(ValueError, match="it has "):
        job.check()


def test_a_summary_that_no_host_can_have_is_refused() -> None:
    summary = summarize_host(snapshot_of("trn1.32xlarge"), "a")
    summary.check()
    first, *others = summary.devices
    most = summary.devices * (MOST_DEVICES // 16)
    replace(summary, devices=most).check()
    for changed, cause in (
        (replace(summary, utilization_ratio=nan), "an invalid number"),
        (replace(summary, devices=(*most, first)), "too many devices"),
        (replace(summary, devices=(replace(first, severity=max(Severity) + 1), *others)), "an invalid severity"),
    ):
        with pytest.raises(ValueError, match=f"it has {cause}"):
            changed.check()


@given(st.sets(st.integers(0, 511), min_size=1, max_size=64))
def test_ranks_are_told_exactly_or_not_at_all(ranks: set[int]) -> None:
    told = replace(JOB, rank_runs=encode_rank_runs(ranks))
    told.check()
    assert told.ranks in (None, frozenset(ranks))
    assert len(told.rank_runs) <= 3 * limits.MOST_RUNS


def test_what_a_host_tells_is_taken_and_a_rank_without_a_number_leaves_all_unknown() -> None:
    JOB.check()
    assert JOB.ranks == frozenset((0, 1))
    assert encode_rank_runs([0, None, 2]) == ()
    assert encode_rank_runs([]) == ()
