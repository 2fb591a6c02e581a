"""The daemon's verdict on the rank that holds up the others of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.snapshots.rates import Rates
from neurond.snapshots.recent_steps import LEAST_STEPS
from neurond.verdicts.judge import Judge

from neurontools.health import Kind, Severity
from neurontools.model import Finding, Process, Snapshot, TrainingCounters
from neurontools.model.attribution import Job
from tests.harness.snapshots import process_of, snapshot_of

WAITS = (0.4, 0.1, 0.4, 0.4)  # seconds a step
FIRST = 2


class Host:
    """Rates and verdicts as the daemon has them, of ranks in step."""

    def __init__(self, world_size: int = 4) -> None:
        self._rates, self._judge = Rates(), Judge()
        self._world_size = world_size
        self._waited = dict.fromkeys(range(4), 0.0)
        self._steps = 0

    def slow(self, steps: int, waits: tuple[float, ...] = WAITS, attached_at: float = 5.0) -> list[Finding]:
        """What is found after so many steps, since the last time with these waits each."""
        for number, wait in enumerate(waits):
            self._waited[number] += wait * (steps - self._steps)
        self._steps = steps
        ranks = [self._rank(number, attached_at) for number in range(len(waits))]
        snapshot: Snapshot = replace(
            snapshot_of("trn1.32xlarge", ranks), sequence=steps + 1, taken_at_seconds=float(steps)
        )
        health = self._judge.judge(self._rates.derive(snapshot, processes_read=True)).health
        assert health is not None
        return [finding for finding in health.findings if finding.kind == Kind.SLOW_RANK]

    def _rank(self, number: int, attached_at: float) -> Process:
        """A rank that spends what it does not wait of each second's step on its loader."""
        waited = self._waited[number]
        return replace(
            process_of(100 + number, "python train.py", (0,)),
            core_indices=(number,),
            neuroncore_indices=(number,),
            job=Job("Slurm job 7", number, self._world_size),
            reporting=True,
            measured_at_seconds=float(self._steps),
            attached_at_unix_seconds=attached_at,
            training=TrainingCounters(
                steps_total=self._steps,
                collective_wait_seconds_total=waited,
                input_wait_seconds_total=self._steps - waited,
                host_seconds_total=0.0,
            ),
        )


def test_a_rank_that_holds_up_the_others_twice_in_a_row_is_named_with_what_takes_it_longer() -> None:
    host = Host()
    assert host.slow(FIRST) == host.slow(FIRST + LEAST_STEPS) == []
    (found,) = host.slow(FIRST + 2 * LEAST_STEPS)
    assert (found.pid, found.part, found.job, found.severity) == (101, "input wait", "Slurm job 7", Severity.NOTICE)
    assert found.pids == (100, 101, 102, 103)
    assert found.reason == (
        "the ranks of Slurm job 7 wait for rank 1, PID 101, which takes longer in input wait: "
        "without it each step would be a fifth shorter or more"
    )
    assert found.action.startswith("its loader is slower")


def test_it_lasts_while_it_holds_them_up_and_no_longer() -> None:
    host = Host()
    for steps in (2, 10, 18):
        host.slow(steps)
    assert len(host.slow(19)) == 1, "until there are new steps to judge by"
    assert host.slow(28, (0.4,) * 4) == []


@pytest.mark.parametrize("change", ["attached anew", "fewer ranks"])
def test_others_of_the_same_name_begin_anew(change: str) -> None:
    host = Host()
    for steps in (2, 10):
        host.slow(steps)
    if change == "attached anew":
        assert host.slow(18, attached_at=7.0) == []
        assert host.slow(26, attached_at=7.0) == []
        assert len(host.slow(34, attached_at=7.0)) == 1
    else:
        assert host.slow(18, WAITS[:3]) == [], "the slow one may be the rank that nobody sees"


def test_once_is_chance() -> None:
    host = Host()
    host.slow(2)
    host.slow(10)
    assert host.slow(18, (0.3, 0.35, 0.4, 0.4)) == []
    assert host.slow(26, (0.1, 0.4, 0.4, 0.4)) == []


def test_of_a_job_on_several_hosts_no_host_tells_alone() -> None:
    host = Host(world_size=8)
    assert [host.slow(steps) for steps in (2, 10, 18, 26)] == [[], [], [], []]
