"""The rates of NeuronCores and processes: from which reports, and when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neurontools.model import ExecutionCounters, LatencyHistogram, NeuronCore, Process, Snapshot, latency
from tests.harness.rated_host import Host, core, process


def rates_of(snapshot: Snapshot) -> tuple[Any, Any]:
    return snapshot.cores[0].utilization_ratio, snapshot.cores[0].flops_per_second


def test_a_rate_is_known_from_the_second_report_on() -> None:
    host = Host()
    assert rates_of(host.take(1, core(None), process(None))) == (None, None)
    assert rates_of(host.take(2, core(1.9, 5.0, 100), process(1.9))) == (None, None)
    assert rates_of(host.take(3, core(2.9, 5.25, 150), process(2.9))) == (0.25, pytest.approx(50))


def test_the_clock_of_a_rate_is_that_of_the_reports() -> None:
    """0.5 busy seconds between reports 2 s apart, whatever the time between the snapshots."""
    host = Host()
    host.take(1, core(0.5), process(0.5))
    assert rates_of(host.take(1.1, core(2.5, 0.5, 8), process(2.5))) == (0.25, 4.0)


def test_a_tick_without_a_new_report_carries_the_rate_on() -> None:
    host = Host()
    host.take(1, core(1.0), process(1.0))
    host.take(2, core(2.0, 0.5, 10), process(2.0))
    for at_seconds in (3, 4):
        assert rates_of(host.take(at_seconds, core(2.0, 0.5, 10), process(2.0))) == (0.5, 10.0)
    assert rates_of(host.take(5, core(5.0, 0.8, 40), process(5.0))) == (pytest.approx(0.1), pytest.approx(10))


def test_busy_time_above_the_wall_clock_is_no_more_than_busy() -> None:
    host = Host()
    host.take(1, core(1.0), process(1.0))
    assert rates_of(host.take(2, core(2.0, 1.5), process(2.0)))[0] == 1.0


def test_another_owner_begins_anew() -> None:
    host = Host()
    host.take(1, core(1.0, 3.0, 30), process(1.0))
    taken_over = core(2.0, 4.0, 40, owner=72)
    assert rates_of(host.take(2, taken_over, replace(process(2.0), pid=72))) == (None, None)
    later = core(3.0, 4.5, 50, owner=72)
    assert rates_of(host.take(3, later, replace(process(3.0), pid=72))) == (0.5, 10.0)


def test_a_core_that_was_freed_keeps_what_the_source_says() -> None:
    host = Host()
    host.take(1, core(1.0, 3.0, 30), process(1.0))
    free = NeuronCore(0, 0, 0, 0, utilization_ratio=0.0, flops_per_second=0.0)
    assert rates_of(host.take(2, free)) == (0.0, 0.0)


def test_counters_that_fall_have_no_rate() -> None:
    host = Host()
    host.take(1, core(1.0, 3.0, 30), process(1.0))
    assert rates_of(host.take(2, core(2.0, 2.0, 20), process(2.0))) == (None, None)
    assert rates_of(host.take(3, core(3.0, 2.5, 25), process(3.0))) == (0.5, 5.0)


def test_a_silent_owner_has_no_rates_until_it_reports_again() -> None:
    host = Host()
    host.take(1, core(1.0), process(1.0))
    host.take(2, core(2.0, 0.5, 10), process(2.0))
    silent = host.take(9, core(2.0, 0.5, 10), process(2.0, reporting=False))
    assert rates_of(silent) == (None, None)
    assert silent.processes[0].executions_per_second is None
    assert rates_of(host.take(10, core(10.0, 4.5, 90), process(10.0))) == (0.5, 10.0)


def histogram(counts: dict[int, int]) -> LatencyHistogram:
    return LatencyHistogram(tuple(counts), tuple(counts.values()), 1.0)


def executed(at_seconds: float, number: int, counts: dict[int, int]) -> Process:
    return process(
        at_seconds,
        executions=ExecutionCounters(completed_total=number - 1, timed_out_total=1),
        total_latency_histogram=histogram(counts),
        device_latency_histogram=histogram(counts),
    )


def test_percentiles_are_those_of_the_period_alone() -> None:
    host = Host()
    first = host.take(1, None, executed(1.0, 100, {50: 100})).processes[0]
    assert (first.executions_per_second, first.total_latency, first.device_latency) == (None, None, None)
    second = host.take(2, None, executed(3.0, 110, {50: 100, 90: 10})).processes[0]
    assert second.executions_per_second == 5.0
    assert second.total_latency == second.device_latency
    assert second.total_latency is not None
    assert second.total_latency.p0_seconds == second.total_latency.p100_seconds == latency.bucket_seconds(90)


def test_two_reports_within_a_tick_are_one_period() -> None:
    host = Host()
    host.take(1, core(1.0), executed(1.0, 10, {50: 10}))
    # At 1.4 there was a report of 12 executions that no snapshot saw.
    snapshot = host.take(2, core(1.8, 0.4, 80), executed(1.8, 18, {50: 10, 60: 8}))
    assert rates_of(snapshot) == (pytest.approx(0.5), pytest.approx(100))
    assert snapshot.processes[0].executions_per_second == pytest.approx(10)


def test_a_period_without_executions_has_a_rate_and_no_percentiles() -> None:
    host = Host()
    host.take(1, None, executed(1.0, 10, {50: 10}))
    idle = host.take(2, None, executed(2.0, 10, {50: 10})).processes[0]
    assert (idle.executions_per_second, idle.total_latency, idle.device_latency) == (0.0, None, None)


def test_percentiles_are_carried_on_too() -> None:
    host = Host()
    host.take(1, None, executed(1.0, 10, {50: 10}))
    known = host.take(2, None, executed(2.0, 20, {50: 20})).processes[0]
    same = host.take(3, None, executed(2.0, 20, {50: 20})).processes[0]
    assert known.total_latency is not None
    assert (same.executions_per_second, same.total_latency) == (10.0, known.total_latency)


def test_a_histogram_that_began_anew_has_percentiles_again_in_the_next_period() -> None:
    host = Host()
    host.take(1, None, executed(1.0, 10, {50: 10}))
    assert host.take(2, None, executed(2.0, 11, {50: 1})).processes[0].total_latency is None
    assert host.take(3, None, executed(3.0, 12, {50: 2})).processes[0].total_latency is not None


def test_a_process_that_attached_again_is_another_one() -> None:
    host = Host()
    host.take(1, None, executed(1.0, 10, {50: 10}))
    again = replace(executed(2.0, 20, {50: 20}), attached_at_unix_seconds=9.0)
    assert host.take(2, None, again).processes[0].executions_per_second is None


def times(user: float, system: float = 0.0) -> Process:
    return process(None, cpu_user_seconds_total=user, cpu_system_seconds_total=system)


def vcpu(snapshot: Snapshot) -> tuple[Any, Any]:
    return snapshot.processes[0].vcpu_user_ratio, snapshot.processes[0].vcpu_system_ratio


def test_vcpu_ratios_count_vcpus() -> None:
    host = Host()
    assert vcpu(host.take(1, None, times(10, 5))) == (None, None)
    assert vcpu(host.take(3, None, times(14, 6))) == (2.0, 0.5)


def test_vcpu_ratios_begin_anew_with_a_process_that_attached_again() -> None:
    host = Host()
    host.take(1, None, times(10, 5))
    again = replace(times(14, 6), attached_at_unix_seconds=9.0)
    assert vcpu(host.take(2, None, again)) == (None, None)
    assert vcpu(host.take(3, None, replace(again, cpu_user_seconds_total=15))) == (1.0, 0.0)


def test_times_that_are_read_twice_in_one_moment_have_no_ratio() -> None:
    host = Host()
    host.take(1, None, times(10, 5))
    assert vcpu(host.take(1, None, times(11, 5))) == (None, None)


def test_snapshots_between_the_ticks_do_not_spoil_vcpu_ratios() -> None:
    host = Host()
    host.take(1, None, times(10, 5))
    host.take(2, None, times(10.5, 5.25))
    for at_seconds in (2.1, 2.2, 2.9):
        assert vcpu(host.take(at_seconds, None, times(10.5, 5.25), processes_read=False)) == (0.5, 0.25)
    assert vcpu(host.take(3, None, times(11.5, 5.25))) == (1.0, 0.0)


def test_a_process_that_came_between_the_ticks_waits_for_two_of_them() -> None:
    host = Host()
    assert vcpu(host.take(1.5, None, times(10), processes_read=False)) == (None, None)
    assert vcpu(host.take(2, None, times(10.1), processes_read=True)) == (None, None)
    assert vcpu(host.take(3, None, times(10.6))) == (pytest.approx(0.5), 0.0)


def test_times_that_cannot_be_read_have_no_ratio() -> None:
    host = Host()
    host.take(1, None, times(10))
    unknown = replace(times(0), cpu_user_seconds_total=None, cpu_system_seconds_total=None)
    assert vcpu(host.take(2, None, unknown)) == (None, None)
    assert vcpu(host.take(3, None, times(11))) == (None, None)


def test_nothing_is_kept_of_processes_that_left() -> None:
    host = Host()
    host.take(1, None, times(10))
    host.take(2)
    assert vcpu(host.take(3, None, times(20))) == (None, None)
    host.take(4)
    assert not host.rates._measured
    assert not host.rates._processes
