from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from neurond.snapshots.rates import Rates

from neurontools.model import (
    ExecutionCounters,
    Instance,
    LatencyHistogram,
    LoadedModel,
    NeuronCore,
    OperatorTime,
    Process,
    Snapshot,
    SourceKind,
    TrainingCounters,
    TrainingRates,
    latency,
)
from neurontools.model.training import STEP_PARTS, RecentSteps

INSTANCE = Instance("trn1.2xlarge", None, 1, 2, 1, (1,), 32, 16, "single")
PID = 71


class Host:
    """A host with one core, whose snapshots are made by hand; `take` gives them their rates."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.sequence = 0

    def take(
        self,
        at_seconds: float,
        core: NeuronCore | None = None,
        *processes: Process,
        processes_read: bool = True,
    ) -> Snapshot:
        self.sequence += 1
        snapshot = Snapshot(
            sequence=self.sequence,
            taken_at_unix_seconds=1e9 + at_seconds,
            taken_at_seconds=at_seconds,
            interval_seconds=1.0,
            source=SourceKind.SIMULATED,
            instance=INSTANCE,
            devices=(),
            cores=(core or NeuronCore(0, 0, 0, 0),),
            processes=processes,
        )
        return self.rates.derive(snapshot, processes_read=processes_read)


def core(measured_at_seconds: float | None, busy: float = 0.0, flop: int = 0, owner: int | None = PID) -> NeuronCore:
    return NeuronCore(
        0, 0, 0, 0, owner_pid=owner, busy_seconds_total=busy, flop_total=flop, measured_at_seconds=measured_at_seconds
    )


def process(measured_at_seconds: float | None, **values: Any) -> Process:
    values = {"attached_at_unix_seconds": 2.0, "reporting": measured_at_seconds is not None} | values
    return Process(
        pid=PID,
        uid=0,
        user="u",
        command="c",
        tag="t",
        runtime_version="1",
        started_at_unix_seconds=1.0,
        synthetic=False,
        logical_neuroncore_config=1,
        measured_at_seconds=measured_at_seconds,
        **values,
    )


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


def test_what_a_training_runtime_counts_has_rates() -> None:
    def at(moment: float, counters: TrainingCounters | None) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    first = TrainingCounters(3, None, 0, 0.0, 0, 0.0, 0, 0, 0)
    assert at(1.0, first) is None
    counters = replace(first, steps_total=9, collective_seconds_total=0.5, to_device_bytes_total=200)
    later = at(3.0, counters)
    assert later == TrainingRates(3.0, None, 0.25, 0.0, 100.0, 0.0)
    assert at(3.0, counters) == later, "no new report: the rates stay"
    counters = replace(counters, samples_total=32, collective_seconds_total=9.0)
    assert at(4.0, counters) == TrainingRates(0.0, None, 1.0, 0.0, 0.0, 0.0)
    assert at(6.0, replace(counters, samples_total=96)) == TrainingRates(0.0, 32.0, 0.0, 0.0, 0.0, 0.0)
    assert at(7.0, None) is None


def test_what_a_training_does_not_tell_has_no_rate() -> None:
    def at(moment: float, counters: TrainingCounters) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    assert at(1.0, TrainingCounters(steps_total=3, input_wait_seconds_total=1.0)) is None
    told = TrainingCounters(steps_total=5, input_wait_seconds_total=1.5)
    assert at(3.0, told) == TrainingRates(steps_per_second=1.0, input_wait_ratio=0.25)
    told = replace(told, input_wait_seconds_total=9.0)
    assert at(4.0, told) == TrainingRates(steps_per_second=0.0, input_wait_ratio=1.0)


def test_each_part_of_step_time_has_its_share() -> None:
    def at(moment: float, counters: TrainingCounters) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    first = TrainingCounters(
        host_seconds_total=1.0,
        compile_wait_seconds_total=7.0,
        input_wait_seconds_total=0.0,
        transfer_seconds_total=0.5,
        compute_seconds_total=2.0,
        collective_wait_seconds_total=1.0,
    )
    at(1.0, first)
    counters = replace(
        first,
        host_seconds_total=2.0,
        input_wait_seconds_total=0.5,
        transfer_seconds_total=0.75,
        compute_seconds_total=4.0,
    )
    shares = at(5.0, replace(counters, collective_wait_seconds_total=1.25))
    assert shares == TrainingRates(
        steps_per_second=0.0,
        host_ratio=0.25,
        compile_wait_ratio=0.0,
        input_wait_ratio=0.125,
        transfer_ratio=0.0625,
        compute_ratio=0.5,
        collective_wait_ratio=0.0625,
    )


@pytest.mark.parametrize("report_seconds", [3.8, 4.0, 4.2])
def test_the_parts_of_step_time_are_of_their_own_sum_and_not_of_the_time_between_reports(report_seconds: float) -> None:
    def at(moment: float, **parts: float) -> TrainingRates | None:
        counters = TrainingCounters(
            **{part.counter: parts.get(part.counter, 0.0) for part in STEP_PARTS}  # type: ignore[arg-type]
        )
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    at(1.0)
    rates = at(1.0 + report_seconds, host_seconds_total=1.0, compute_seconds_total=2.0, transfer_seconds_total=1.0)
    assert rates is not None
    assert (rates.host_ratio, rates.compute_ratio, rates.transfer_ratio) == (0.25, 0.5, 0.25)


def test_parts_of_which_one_fell_are_together_no_more_than_the_whole() -> None:
    def at(moment: float, host_seconds: float, input_wait_seconds: float, compute_seconds: float) -> TrainingRates:
        counters = TrainingCounters(
            host_seconds_total=host_seconds,
            input_wait_seconds_total=input_wait_seconds,
            compute_seconds_total=compute_seconds,
        )
        rates = host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates
        return rates or TrainingRates()

    host = Host()
    at(1.0, 6.0, 0.0, 1.0)
    told = at(2.0, 1.0, 5.0, 1.5)  # a script that says after five seconds that they were waiting
    assert told.host_ratio is None
    assert told.input_wait_ratio is not None
    assert told.compute_ratio is not None
    assert told.input_wait_ratio + told.compute_ratio <= 1.0


def test_operators_and_models_have_their_shares_of_the_last_ten_seconds() -> None:
    def at(moment: float, seconds: float, measured: float | None = None, **fields: Any) -> tuple[float | None, ...]:
        model = LoadedModel(1, "m", "0" * 32, running=True, busy_seconds_total=2 * seconds)
        told = process(
            moment if measured is None else measured,
            operators=(OperatorTime("mm", seconds, 1),),
            models=(model,),
            counted_since_seconds=0.5,
            **fields,
        )
        (taken,) = host.take(moment, core(moment), told).processes
        return taken.operators[0].ratio, taken.models[0].busy_ratio

    host = Host()
    assert at(1.0, 0.0) == (None, None)
    assert at(2.0, 0.25) == (0.25, 0.5)
    assert at(3.0, 0.25, measured=2.0) == (0.25, 0.5), "no new report: the shares stay"
    for moment in range(3, 12):
        at(float(moment), 0.25)
    assert at(12.0, 0.25 + 4.0) == (0.4, 0.8), "of ten seconds, however long a step is"
    assert at(13.0, 0.1) == (None, None), "what falls is not known"
    assert at(14.0, 9.0, reporting=False) == (None, None)
    before = host.rates._shares
    host.take(15.0, core(15.0))
    assert not before._past, "who has gone is forgotten"


def test_operators_that_are_told_apart_for_the_first_time_have_shares_at_once() -> None:
    def at(moment: float, **seconds: float) -> dict[str, float | None]:
        operators = tuple(OperatorTime(name.strip("_"), spent, 1) for name, spent in seconds.items())
        told = process(moment, operators=operators, counted_since_seconds=0.5)
        return {each.name: each.ratio for each in host.take(moment, core(moment), told).processes[0].operators}

    host = Host()
    assert at(1.0, _=1.0) == {"": None}
    assert at(2.0, mm=0.25, _=1.0) == {"mm": 0.25, "": 0.0}
    for moment in range(3, 14):
        at(float(moment), mm=0.25, _=1.0)
    assert at(14.0, mm=0.25, add=0.5, _=1.0) == {"mm": 0.0, "add": None, "": 0.0}, "it may have been among the rest"


def stepped(steps: int, wait: float | None, host: float = 0.0) -> TrainingCounters:
    return TrainingCounters(steps_total=steps, collective_wait_seconds_total=wait, host_seconds_total=host)


def test_the_latest_steps_of_a_rank_are_told_in_two_spans() -> None:
    def at(moment: float, steps: int, wait: float | None) -> RecentSteps | None:
        counted = stepped(steps, wait, moment)
        return host.take(moment, core(moment), process(moment, training=counted)).processes[0].recent_steps

    host = Host()
    assert at(0.0, 1, 0.0) is None, "the first steps compile"
    assert at(1.0, 2, 0.0) is None
    assert at(2.0, 7, 5.0) is None, "too few"
    assert at(3.0, 10, 0.8) is None, "one span"
    told = at(5.0, 18, 4.0)
    assert told is not None
    assert told.steps == 16
    assert told.least_wait_seconds == pytest.approx(0.1)
    assert told.most_wait_seconds == pytest.approx(0.4)
    parts = dict(zip([part.name for part in STEP_PARTS], told.part_seconds, strict=True))
    assert parts["collective wait"] == pytest.approx(0.25)
    assert parts["host"] == pytest.approx(0.25)
    assert told.step_seconds == pytest.approx(0.5)
    assert at(6.0, 19, 4.0) == told, "until there are enough new ones"
    assert at(7.0, 26, 4.0) != told


def test_who_counts_anew_or_does_not_tell_its_waits_begins_anew() -> None:
    def at(moment: float, steps: int, wait: float | None, attached: float = 2.0) -> RecentSteps | None:
        of = process(moment, training=stepped(steps, wait), attached_at_unix_seconds=attached)
        return host.take(moment, core(moment), of).processes[0].recent_steps

    host = Host()
    for moment in range(4):
        at(float(moment), 8 * moment + 2, 1.0 * moment)
    assert at(4.0, 34, 4.0) is not None
    assert at(5.0, 42, None) is None
    assert at(6.0, 10, 1.0, attached=9.0) is None
    assert at(7.0, 18, 1.0, attached=9.0) is None
    assert at(8.0, 26, 1.0, attached=9.0) is not None
    host.take(9.0)
    assert not host.rates._steps._past
