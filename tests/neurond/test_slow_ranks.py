"""The daemon's verdict on the rank that holds up the others of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.verdicts.judge import Judge

from neurontools.health import Kind, Severity
from neurontools.model import Finding, Process, Snapshot, TrainingCounters
from neurontools.model.attribution import Job
from neurontools.model.jobs.slow_rank import LEAST_STEPS
from tests.harness.snapshots import process_of, snapshot_of

WAITS = (0.4, 0.1, 0.4, 0.4)  # seconds a step


def rank(number: int, steps: int, wait: float, attached_at: float = 5.0) -> Process:
    """A rank that spends what it does not wait of each second's step on its loader."""
    return replace(
        process_of(100 + number, "python train.py", (0,)),
        core_indices=(number,),
        neuroncore_indices=(number,),
        job=Job("Slurm job 7", number, 4),
        reporting=True,
        attached_at_unix_seconds=attached_at,
        training=TrainingCounters(
            steps_total=steps,
            collective_wait_seconds_total=steps * wait,
            input_wait_seconds_total=steps * (1.0 - wait),
            host_seconds_total=0.0,
        ),
    )


def host(steps: int, waits: tuple[float, ...] = WAITS, attached_at: float = 5.0) -> Snapshot:
    ranks = [rank(number, steps, wait, attached_at) for number, wait in enumerate(waits)]
    return replace(snapshot_of("trn1.32xlarge", ranks), sequence=steps + 1, taken_at_seconds=float(steps))


def slow(judge: Judge, snapshot: Snapshot) -> list[Finding]:
    health = judge.judge(snapshot).health
    assert health is not None
    return [finding for finding in health.findings if finding.kind == Kind.SLOW_RANK]


def test_a_rank_that_holds_up_the_others_twice_in_a_row_is_named_with_what_takes_it_longer() -> None:
    judge = Judge()
    assert slow(judge, host(0)) == slow(judge, host(LEAST_STEPS)) == []
    (found,) = slow(judge, host(2 * LEAST_STEPS))
    assert (found.pid, found.part, found.job, found.severity) == (101, "input wait", "Slurm job 7", Severity.NOTICE)
    assert found.pids == (100, 101, 102, 103)
    assert found.reason == (
        "the ranks of Slurm job 7 wait for rank 1, PID 101, which takes longer in input wait: "
        "without it each step would be a fifth shorter or more"
    )
    assert found.action.startswith("its loader is slower")


def test_it_lasts_while_it_holds_them_up_and_no_longer() -> None:
    judge = Judge()
    for steps in (0, 8, 16):
        slow(judge, host(steps))
    assert len(slow(judge, host(17))) == 1, "until there are new steps to judge by"
    assert slow(judge, replace(host(26, WAITS), processes=host(26, (0.4,) * 4).processes)) == []


@pytest.mark.parametrize(
    "later",
    [host(2 * LEAST_STEPS, WAITS, attached_at=7.0), host(2 * LEAST_STEPS, WAITS[:3]), host(LEAST_STEPS + 1)],
)
def test_others_of_the_same_name_begin_anew(later: Snapshot) -> None:
    judge = Judge()
    slow(judge, host(0))
    slow(judge, host(LEAST_STEPS))
    assert slow(judge, later) == []


def test_once_is_chance() -> None:
    judge = Judge()
    slow(judge, host(0))
    slow(judge, host(8, (0.1, 0.4, 0.4, 0.4)))
    turned = tuple(rank(number, 16, wait) for number, wait in enumerate((0.3, 0.2, 0.4, 0.4)))
    assert slow(judge, replace(host(16), processes=turned)) == []
