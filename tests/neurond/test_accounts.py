"""What the accounts make of snapshots: who has ended, and what it used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.journal.accounts import Accounts, Departure
from neurond.journal.ended_log import MOST_ENDED, MOST_RECENT, RECENT_SECONDS, EndedLog
from neurond.journal.outcome import Outcome
from neurond.journal.use import Use

from neurontools.catalog import peak_flops_per_core
from neurontools.model import (
    Attribution,
    DeviceMemory,
    EndedProcess,
    ExecutionCounters,
    Job,
    NeuronCore,
    Process,
    Snapshot,
)
from tests.harness.snapshots import process_of, snapshot_of

NOW = 1_767_323_045.0
TOKEN = "token"


def attached(pid: int = 7, **changes: object) -> Process:
    process = replace(
        process_of(pid, "python train.py", (0,)),
        attached_at_unix_seconds=NOW,
        core_indices=(0, 1),
        neuroncore_indices=(0, 1),
        executions=ExecutionCounters(completed_total=5),
    )
    return replace(process, **changes)  # type: ignore[arg-type]


def found(pid: int = 7, **changes: object) -> Process:
    return attached(pid, attached_at_unix_seconds=None, started_at_unix_seconds=NOW - 100, **changes)


def at(seconds: float, *processes: Process, cores: dict[int, NeuronCore] | None = None) -> Snapshot:
    snapshot = snapshot_of("trn1.32xlarge", processes)
    return replace(
        snapshot,
        taken_at_unix_seconds=NOW + seconds,
        taken_at_seconds=1000.0 + seconds,
        cores=tuple((cores or {}).get(core.index, core) for core in snapshot.cores),
    )


def busy(snapshot: Snapshot, index: int, seconds: float, memory_bytes: int = 0) -> dict[int, NeuronCore]:
    core = replace(snapshot.cores[index], busy_seconds_total=seconds, memory=DeviceMemory(tensors_bytes=memory_bytes))
    return {index: core}


def accounts(*, lives: bool = False) -> Accounts:
    return Accounts(lambda _process: lives)


def test_a_process_that_left_is_told_of_when_it_is_known_how_it_ended() -> None:
    of = accounts()
    of.observe(at(0, attached(job=Job("Slurm job 3"), attribution=Attribution(slurm_job_id="3"))), ())
    last = attached(executions=ExecutionCounters(completed_total=40, timed_out_total=2))
    peak = peak_flops_per_core("trn1.32xlarge")
    assert peak
    use = Use(busy_seconds_total=10.0, flop_total=int(peak * 2), peak_device_memory_bytes=99)
    assert of.observe(at(10), [Departure(TOKEN, last, use)]) == []
    of.end(TOKEN, Outcome(-9))
    (ended,) = of.observe(at(11), ())
    assert (ended.pid, ended.job, ended.exit_status, ended.how) == (7, "Slurm job 3", -9, "signal 9")
    assert ended.held_seconds == 10.0
    assert ended.neuroncore_hours == pytest.approx(20 / 3600)
    assert ended.utilization_ratio == pytest.approx(0.5)
    assert ended.mfu_ratio == pytest.approx(0.1)
    assert (ended.peak_device_memory_bytes, ended.failed_executions_total) == (99, 2)
    assert of.observe(at(12), ()) == []


def test_it_may_be_known_how_it_ended_before_any_snapshot_shows_that_it_has() -> None:
    of = accounts()
    of.observe(at(0, attached()), ())
    of.end(TOKEN, Outcome(0))
    (ended,) = of.observe(at(1), [Departure(TOKEN, attached(), Use())])
    assert (ended.exit_status, ended.utilization_ratio, ended.mfu_ratio) == (0, None, None)


def test_a_process_counts_from_when_it_began_to_and_not_from_when_it_attached_to_this_daemon() -> None:
    of = accounts()
    process = attached(counted_since_seconds=1000.0 - 3600.0)
    of.end(TOKEN, Outcome(0))
    (ended,) = of.observe(at(0), [Departure(TOKEN, process, Use(busy_seconds_total=720.0))])
    assert ended.held_seconds == pytest.approx(3600.0)
    assert ended.utilization_ratio == pytest.approx(0.1)


def test_what_only_watches_is_no_account() -> None:
    of = accounts()
    of.observe(at(0, process_of(8, "neuron-monitor", (0,), None)), ())
    assert of.observe(at(1), ()) == []


def test_a_process_that_tells_nothing_is_accounted_for_by_what_the_driver_counts() -> None:
    of = accounts()
    first = at(0, found())
    of.observe(at(0, found(), cores=busy(first, 0, 100.0)), ())
    of.observe(at(5, found(), cores=busy(first, 0, 104.0, memory_bytes=500)), ())
    of.observe(at(10, found(), cores=busy(first, 0, 108.0, memory_bytes=200)), ())
    (ended,) = of.observe(at(10), ())
    assert ended.busy_seconds_total == pytest.approx(8.0)
    assert ended.utilization_ratio == pytest.approx(8.0 / 20.0)
    assert ended.peak_device_memory_bytes == 500
    assert (ended.exit_status, ended.lives_on) == (None, False)


def test_a_counter_of_the_driver_that_began_anew_takes_nothing_away() -> None:
    of = accounts()
    first = at(0, found())
    for seconds, counted in ((0, 100.0), (1, 103.0), (2, 1.0), (3, 2.0)):
        of.observe(at(seconds, found(), cores=busy(first, 0, counted)), ())
    (ended,) = of.observe(at(4), ())
    assert ended.busy_seconds_total == pytest.approx(4.0)


def test_a_process_that_let_its_devices_go_lives_on() -> None:
    of = accounts(lives=True)
    of.observe(at(0, found()), ())
    (ended,) = of.observe(at(1), ())
    assert ended.how == "let go"


def test_the_next_process_with_the_same_pid_is_another() -> None:
    of = accounts()
    of.observe(at(0, found()), ())
    (ended,) = of.observe(at(1, replace(found(), started_at_unix_seconds=NOW)), ())
    assert ended.ended_at_unix_seconds == NOW + 1
    (other,) = of.observe(at(3), ())
    assert other.began_at_unix_seconds == NOW + 1


def test_a_process_that_attaches_after_it_was_found_has_not_ended() -> None:
    of = accounts()
    of.observe(at(0, found()), ())
    assert of.observe(at(1, attached()), ()) == []


def ended_at(seconds: float) -> EndedProcess:
    return EndedProcess(7, 0, "root", "", "7", None, False, NOW, NOW + seconds, 1, 1)


def test_the_log_keeps_the_latest_and_says_since_when_it_knows() -> None:
    log = EndedLog(NOW)
    log.add(map(ended_at, range(MOST_ENDED + 5)))
    assert log.known_since_unix_seconds == NOW + 4
    assert len(log.since(0)) == MOST_ENDED
    assert [process.ended_at_unix_seconds for process in log.since(NOW + MOST_ENDED + 3)] == [
        NOW + MOST_ENDED + 3,
        NOW + MOST_ENDED + 4,
    ]


def test_a_snapshot_shows_what_ended_within_a_minute_and_not_all_of_many() -> None:
    log = EndedLog(NOW)
    log.add(ended_at(0) for _ in range(MOST_RECENT + 5))
    assert len(log.recent(NOW + 1)) == MOST_RECENT
    assert log.recent(NOW + RECENT_SECONDS + 1) == ()
