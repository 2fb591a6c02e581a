"""Jobs that stand still: who waits in which collective, and for whom; and what is no hang however long it lasts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.verdicts.judge import Judge
from neurond.verdicts.thresholds import Thresholds

from neurontools.health import Kind
from neurontools.model import Finding, Job, NeuronCore, Process, Severity, Snapshot, TrainingCounters
from tests.harness.snapshots import process_of, snapshot_of

NOW, UNIX = 1000.0, 1.7e9
JOB = "torchrun exp1"


def rank(number: int, *, world: int = 4, reporting: bool = True, vcpu: float = 0.0, **counters: object) -> Process:
    """A rank whose steps take a second, the latest one 70 s ago; without more it is in no collective."""
    told = TrainingCounters(
        steps_total=100, collectives_total=411, latest_collective="all_reduce", last_step_at_seconds=NOW - 70.0
    )
    told = replace(told, **counters)  # type: ignore[arg-type]
    return replace(
        process_of(100 + number, "python train.py", (0,)),
        core_indices=(number,),
        neuroncore_indices=(number,),
        device_indices=(number // 2,),
        job=Job(JOB, number, world),
        reporting=reporting,
        measured_at_seconds=NOW if reporting else NOW - 60.0,
        counted_since_seconds=NOW - 170.0,
        vcpu_user_ratio=vcpu,
        training=told,
    )


def waiting(number: int, seconds: float = 69.0, **counters: object) -> Process:
    return rank(number, collective_since_seconds=NOW - seconds, **counters)  # type: ignore[arg-type]


def found(*ranks: Process, cores: dict[int, float] | None = None, limit: float | None = 60.0) -> list[Finding]:
    """What is found; `cores` says how many seconds ago the execution began that is in flight on a core."""
    empty = snapshot_of("trn1.32xlarge", list(ranks))

    def core(each: NeuronCore) -> NeuronCore:
        began = (cores or {}).get(each.index)
        at = None if began is None else UNIX - began
        return replace(each, execution_started_at_unix_seconds=at, last_execution_at_unix_seconds=UNIX - 70.0)

    snapshot: Snapshot = replace(
        empty, taken_at_seconds=NOW, taken_at_unix_seconds=UNIX, cores=tuple(map(core, empty.cores))
    )
    judged = Judge(Thresholds(stuck_seconds=limit, idle_seconds=None)).judge(snapshot).health
    assert judged is not None
    return [finding for finding in judged.findings if finding.kind in (Kind.STUCK, Kind.WAITING)]


THREE = (waiting(0), waiting(1), waiting(3))


def test_who_has_not_come_to_the_collective_is_named_with_its_last_one() -> None:
    (one,) = found(*THREE, rank(2))
    assert one.reason == (
        "3 ranks wait in all_reduce (number 412) for rank 2, PID 102, "
        "which executes nothing after all_reduce (number 411)"
    )
    assert (one.severity, one.pid, one.pids) == (Severity.CRITICAL, 102, (100, 101, 102, 103))
    assert (one.device_indices, one.job, one.began_at_unix_seconds) == ((1,), JOB, UNIX - 69.0)
    assert "py-spy dump --pid 102" in one.action


def test_one_that_was_stopped_or_whose_execution_hangs_is_told_so() -> None:
    (stopped,) = found(*THREE, replace(waiting(2), reporting=False))
    assert "rank 2, PID 102, which has stopped reporting after all_reduce (number 412)" in stopped.reason
    (hangs,) = found(*THREE, rank(2), cores={2: 65.0})
    assert "rank 2, PID 102, whose execution does not finish" in hangs.reason


@pytest.mark.parametrize(
    ("last", "cores"),
    [
        (rank(2, compiling_since_seconds=NOW - 700.0), {}),
        (rank(2, checkpointing_since_seconds=NOW - 700.0), {}),
        (rank(2), {2: 3.0}),  # it executes: an evaluation
        (rank(2, vcpu=1.0), {}),  # its script does something
        (waiting(2, 5.0), {}),  # they have just come together
    ],
)
def test_who_is_at_work_is_waited_for(last: Process, cores: dict[int, float]) -> None:
    assert found(*THREE, last, cores=cores) == []


def test_work_on_a_vcpu_is_not_waited_for_for_ever() -> None:
    late = [waiting(number, 301.0) for number in (0, 1, 3)]
    assert len(found(*late, rank(2, vcpu=1.0))) == 1


def test_long_steps_are_waited_for_ten_times_as_long() -> None:
    slow = [replace(each, counted_since_seconds=NOW - 870.0) for each in (*THREE, rank(2))]
    assert found(*slow) == []
    assert found(*THREE, rank(2), limit=None) == []


def test_ranks_in_different_collectives_are_told_one_by_one() -> None:
    (one,) = found(*THREE, waiting(2, latest_collective="broadcast"))
    assert one.reason == (
        f"no rank of {JOB} gets on: 3 ranks in all_reduce (number 412), rank 2, PID 102 in broadcast (number 412)"
    )
    assert (one.pid, one.severity) == (102, Severity.CRITICAL)


def test_those_who_wait_for_other_hosts_are_a_notice_and_the_host_of_the_absent_tells_the_rest() -> None:
    here = [replace(waiting(number), job=Job(JOB, number, 8)) for number in range(4)]
    (one,) = found(*here)
    assert one.reason == f"4 ranks of {JOB} wait in all_reduce (number 412) for ranks on other hosts"
    assert (one.kind, one.severity) == (Kind.WAITING, Severity.NOTICE)
    (alone,) = found(rank(2, world=8))
    assert alone.reason == f"rank 2, PID 102, of {JOB} makes no step any more"
    assert alone.severity is Severity.WARNING
    assert found(rank(0, world=1)) == [], "nobody waits for one that works alone"


def test_ranks_that_all_do_nothing_are_a_warning() -> None:
    (one,) = found(*(rank(number) for number in range(4)))
    assert one.reason == f"no rank of {JOB} makes a step any more, and none is in a collective"
    assert one.severity is Severity.WARNING
    assert found(*(rank(number, last_step_at_seconds=None) for number in range(4))) == []
