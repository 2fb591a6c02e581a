"""What records are compared with when a daemon was restarted in between."""

from __future__ import annotations

from dataclasses import replace

from neurontools.model import ExecutionCounters, Process, Snapshot
from neurontools.monitor.baseline import LONGEST_AWAY_SECONDS, Baseline
from neurontools.monitor.period import Period
from tests.harness.scenario_host import ScenarioHost


def snapshot(second: float, *, daemon_pid: int, with_process: bool = True) -> Snapshot:
    now = ScenarioHost("inf2.xlarge").at(second)
    processes = tuple(replace(process, counted_since_seconds=1.5) for process in now.processes) if with_process else ()
    return replace(now, daemon_pid=daemon_pid, processes=processes)


def completed(now: Snapshot, baseline: Baseline) -> int | None:
    process = now.processes[0]
    assert process.executions
    counts = Period(now, baseline).counts("executions", process)
    return None if counts is None else counts["completed"]


def total(process: Process) -> int:
    assert process.executions
    return process.executions.completed_total


def test_a_process_that_a_restarted_daemon_has_not_seen_yet_is_waited_for() -> None:
    first, gone, back, later = (
        snapshot(10, daemon_pid=1),
        snapshot(11, daemon_pid=2, with_process=False),
        snapshot(13, daemon_pid=2),
        snapshot(14, daemon_pid=2),
    )
    baseline = Baseline.first(first).after(gone)
    assert completed(back, baseline) == total(back.processes[0]) - total(first.processes[0])
    baseline = baseline.after(back)
    assert not baseline.away
    assert completed(later, baseline) == total(later.processes[0]) - total(back.processes[0])


def test_a_process_that_ended_is_not_waited_for_without_a_restart() -> None:
    baseline = Baseline.first(snapshot(10, daemon_pid=1)).after(snapshot(11, daemon_pid=1, with_process=False))
    assert not baseline.away


def test_a_process_that_never_comes_back_is_forgotten() -> None:
    baseline = Baseline.first(snapshot(10, daemon_pid=1)).after(snapshot(11, daemon_pid=2, with_process=False))
    assert len(baseline.away) == 2
    end = snapshot(12, daemon_pid=2, with_process=False)
    late = replace(end, taken_at_seconds=end.taken_at_seconds + LONGEST_AWAY_SECONDS + 1)
    assert not baseline.after(late).away


def test_what_was_counted_before_the_first_record_is_in_none() -> None:
    empty, now = snapshot(10, daemon_pid=1, with_process=False), snapshot(12, daemon_pid=1)
    assert completed(now, Baseline.first(empty)) == 0
    young = replace(now, processes=(replace(now.processes[0], counted_since_seconds=empty.taken_at_seconds),))
    assert completed(young, Baseline.first(empty)) == total(now.processes[0])


def test_a_process_that_is_attached_again_and_has_not_told_anything_yet_is_no_beginning() -> None:
    first, back = snapshot(10, daemon_pid=1), snapshot(13, daemon_pid=2)
    silent = replace(
        snapshot(12, daemon_pid=2),
        processes=tuple(
            replace(process, counted_since_seconds=None, executions=ExecutionCounters(), measured_at_seconds=None)
            for process in snapshot(12, daemon_pid=2).processes
        ),
    )
    baseline = Baseline.first(first).after(silent)
    assert completed(back, baseline) == total(back.processes[0]) - total(first.processes[0])
