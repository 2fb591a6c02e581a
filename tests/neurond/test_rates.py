"""The rates of NeuronCores, processes and trainings: from which reports, and when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from neurond.snapshots.rates import RateCalculator

from neurontools.model import (
    ExecutionCounters,
    LatencyHistogram,
    LoadedModel,
    NeuronCore,
    OperatorTime,
    Process,
    RecentSteps,
    ServedModel,
    ServedModelRates,
    Snapshot,
    TrainingCounters,
    TrainingRates,
    execution,
)
from neurontools.model.process import STEP_PARTS
from tests.harness.snapshots import process_of, snapshot_of

PID = 71
UNKNOWN = (None, None)
FREE = NeuronCore(0, 0, 0, 0, utilization_ratio=0.0, flops_per_second=0.0)


class Host:
    """A host with one core, whose snapshots are made by hand; `take` gives them their rates."""

    def __init__(self) -> None:
        self._rates = RateCalculator()
        self._sequence = 0

    def take(
        self, at_seconds: float, core: NeuronCore | None = None, *processes: Process, processes_read: bool = True
    ) -> Snapshot:
        self._sequence += 1
        snapshot = replace(
            snapshot_of("trn1.2xlarge", processes),
            sequence=self._sequence,
            taken_at_seconds=at_seconds,
            cores=(core or NeuronCore(0, 0, 0, 0),),
        )
        return self._rates.derive(snapshot, processes_read=processes_read)

    def training(self, at_seconds: float, measured: float | None = None, **fields: Any) -> Process:
        """The only process in the snapshot of this moment."""
        told = process(at_seconds if measured is None else measured, **fields)
        return self.take(at_seconds, core(at_seconds), told).processes[0]

    def rates(self, at_seconds: float, counters: TrainingCounters | None) -> TrainingRates | None:
        return self.training(at_seconds, training=counters).training_rates


def core(measured_at_seconds: float | None, busy: float = 0.0, flop: int = 0, owner: int | None = PID) -> NeuronCore:
    return NeuronCore(
        0, 0, 0, 0, owner_pid=owner, busy_seconds_total=busy, flop_total=flop, measured_at_seconds=measured_at_seconds
    )


def process(measured_at_seconds: float | None, **values: Any) -> Process:
    told = {"attached_at_unix_seconds": 2.0, "reporting": measured_at_seconds is not None} | values
    return replace(process_of(PID, "c", ()), measured_at_seconds=measured_at_seconds, **told)


def rates_of(snapshot: Snapshot) -> tuple[Any, Any]:
    return snapshot.cores[0].utilization_ratio, snapshot.cores[0].flops_per_second


CORES: dict[str, list[tuple[float, NeuronCore, Process | None, tuple[Any, Any]]]] = {
    "from the second report on": [
        (1, core(None), process(None), UNKNOWN),
        (2, core(1.9, 5.0, 100), process(1.9), UNKNOWN),
        (3, core(2.9, 5.25, 150), process(2.9), (0.25, 50)),
    ],
    # 0.5 busy seconds between reports 2 s apart, whatever the time between the snapshots.
    "by the clock of the reports": [
        (1, core(0.5), process(0.5), UNKNOWN),
        (1.1, core(2.5, 0.5, 8), process(2.5), (0.25, 4.0)),
    ],
    "carried on without a new report": [
        (1, core(1.0), process(1.0), UNKNOWN),
        (2, core(2.0, 0.5, 10), process(2.0), (0.5, 10.0)),
        (3, core(2.0, 0.5, 10), process(2.0), (0.5, 10.0)),
        (4, core(2.0, 0.5, 10), process(2.0), (0.5, 10.0)),
        (5, core(5.0, 0.8, 40), process(5.0), (0.1, 10)),
    ],
    "no more than busy": [(1, core(1.0), process(1.0), UNKNOWN), (2, core(2.0, 1.5), process(2.0), (1.0, 0.0))],
    "another owner": [
        (1, core(1.0, 3.0, 30), process(1.0), UNKNOWN),
        (2, core(2.0, 4.0, 40, owner=72), replace(process(2.0), pid=72), UNKNOWN),
        (3, core(3.0, 4.5, 50, owner=72), replace(process(3.0), pid=72), (0.5, 10.0)),
    ],
    "freed": [(1, core(1.0, 3.0, 30), process(1.0), UNKNOWN), (2, FREE, None, (0.0, 0.0))],
    "counters that fall": [
        (1, core(1.0, 3.0, 30), process(1.0), UNKNOWN),
        (2, core(2.0, 2.0, 20), process(2.0), UNKNOWN),
        (3, core(3.0, 2.5, 25), process(3.0), (0.5, 5.0)),
    ],
    "a silent owner": [
        (1, core(1.0), process(1.0), UNKNOWN),
        (2, core(2.0, 0.5, 10), process(2.0), (0.5, 10.0)),
        (9, core(2.0, 0.5, 10), process(2.0, reporting=False), UNKNOWN),
        (10, core(10.0, 4.5, 90), process(10.0), (0.5, 10.0)),
    ],
}


@pytest.mark.parametrize("ticks", CORES.values(), ids=CORES)
def test_rates_of_a_core(ticks: list[tuple[float, NeuronCore, Process | None, tuple[Any, Any]]]) -> None:
    host = Host()
    for at_seconds, of, owner, expected in ticks:
        snapshot = host.take(at_seconds, of, *([owner] if owner is not None else []))
        assert rates_of(snapshot) == (pytest.approx(expected) if None not in expected else expected)
        assert owner is None or owner.reporting or snapshot.processes[0].executions_per_second is None


def executed(at_seconds: float, number: int, counts: dict[int, int]) -> Process:
    histogram = LatencyHistogram(tuple(counts), tuple(counts.values()), 1.0)
    return process(
        at_seconds,
        executions=ExecutionCounters(completed_total=number - 1, timed_out_total=1),
        total_latency_histogram=histogram,
        device_latency_histogram=histogram,
    )


def test_percentiles_are_those_of_the_period_alone_and_carried_on() -> None:
    host = Host()
    first = host.take(1, None, executed(1.0, 100, {50: 100})).processes[0]
    assert (first.executions_per_second, first.total_latency, first.device_latency) == (None, None, None)
    second = host.take(2, None, executed(3.0, 110, {50: 100, 90: 10})).processes[0]
    assert second.executions_per_second == 5.0
    assert second.total_latency == second.device_latency
    assert second.total_latency is not None
    assert second.total_latency.p0_seconds == second.total_latency.p100_seconds == execution.bucket_seconds(90)
    same = host.take(3, None, executed(3.0, 110, {50: 100, 90: 10})).processes[0]
    assert (same.executions_per_second, same.total_latency) == (5.0, second.total_latency)
    idle = host.take(4, None, executed(4.0, 110, {50: 100, 90: 10})).processes[0]
    assert (idle.executions_per_second, idle.total_latency, idle.device_latency) == (0.0, None, None)


def test_a_reporter_that_began_anew_has_percentiles_again_in_the_next_period() -> None:
    host = Host()
    host.take(1, None, executed(1.0, 10, {50: 10}))
    assert host.take(2, None, executed(2.0, 11, {50: 1})).processes[0].total_latency is None
    assert host.take(3, None, executed(3.0, 12, {50: 2})).processes[0].total_latency is not None
    again = replace(executed(4.0, 20, {50: 20}), attached_at_unix_seconds=9.0)
    assert host.take(4, None, again).processes[0].executions_per_second is None, "it attached again: another process"


def times(user: float | None, system: float | None = 0.0, attached: float = 2.0) -> Process:
    return process(
        None, cpu_user_seconds_total=user, cpu_system_seconds_total=system, attached_at_unix_seconds=attached
    )


VCPUS: dict[str, list[tuple[float, Process | None, bool, tuple[Any, Any]]]] = {
    "counted in vCPUs": [(1, times(10, 5), True, UNKNOWN), (3, times(14, 6), True, (2.0, 0.5))],
    "attached again": [
        (1, times(10, 5), True, UNKNOWN),
        (2, times(14, 6, 9.0), True, UNKNOWN),
        (3, times(15, 6, 9.0), True, (1.0, 0.0)),
    ],
    "read twice in one moment": [(1, times(10, 5), True, UNKNOWN), (1, times(11, 5), True, UNKNOWN)],
    "snapshots between ticks": [
        (1, times(10, 5), True, UNKNOWN),
        (2, times(10.5, 5.25), True, (0.5, 0.25)),
        (2.1, times(10.5, 5.25), False, (0.5, 0.25)),
        (2.9, times(10.5, 5.25), False, (0.5, 0.25)),
        (3, times(11.5, 5.25), True, (1.0, 0.0)),
    ],
    "came between two ticks": [
        (1.5, times(10), False, UNKNOWN),
        (2, times(10.1), True, UNKNOWN),
        (3, times(10.6), True, (0.5, 0.0)),
    ],
    "unreadable": [(1, times(10), True, UNKNOWN), (2, times(None, None), True, UNKNOWN), (3, times(11), True, UNKNOWN)],
    "left and came back": [(1, times(10), True, UNKNOWN), (2, None, True, UNKNOWN), (3, times(20), True, UNKNOWN)],
}


@pytest.mark.parametrize("ticks", VCPUS.values(), ids=VCPUS)
def test_vcpu_ratios(ticks: list[tuple[float, Process | None, bool, tuple[Any, Any]]]) -> None:
    host = Host()
    for at_seconds, of, processes_read, expected in ticks:
        if of is None:
            host.take(at_seconds)
            continue
        (now,) = host.take(at_seconds, None, of, processes_read=processes_read).processes
        found = (now.vcpu_user_ratio, now.vcpu_system_ratio)
        assert found == (pytest.approx(expected) if None not in expected else expected)


def test_what_a_training_counts_has_rates() -> None:
    host = Host()
    first = TrainingCounters(3, None, 0, 0.0, 0, 0.0, 0, 0, 0)
    assert host.rates(1.0, first) is None
    counters = replace(first, steps_total=9, collective_seconds_total=0.5, to_device_bytes_total=200)
    later = host.rates(3.0, counters)
    assert later == TrainingRates(3.0, None, 0.25, 0.0, 100.0, 0.0)
    assert host.rates(3.0, counters) == later, "no new report: the rates stay"
    counters = replace(counters, samples_total=32, collective_seconds_total=9.0)
    assert host.rates(4.0, counters) == TrainingRates(0.0, None, 1.0, 0.0, 0.0, 0.0)
    counters = replace(counters, samples_total=96)
    assert host.rates(6.0, counters) == TrainingRates(0.0, 32.0, 0.0, 0.0, 0.0, 0.0)
    assert host.rates(7.0, None) is None
    host = Host()
    assert host.rates(1.0, TrainingCounters(steps_total=3, input_wait_seconds_total=1.0)) is None
    told = TrainingCounters(steps_total=5, input_wait_seconds_total=1.5)
    assert host.rates(3.0, told) == TrainingRates(steps_per_second=1.0, input_wait_ratio=0.25), "and no others"
    told = replace(told, input_wait_seconds_total=9.0)
    assert host.rates(4.0, told) == TrainingRates(steps_per_second=0.0, input_wait_ratio=1.0)


@pytest.mark.parametrize("report_seconds", [3.8, 4.0, 4.2])
def test_the_parts_of_step_time_are_shares_of_their_sum_and_not_of_the_time_between_reports(
    report_seconds: float,
) -> None:
    host = Host()
    first = TrainingCounters(**{part.counter: 1.0 for part in STEP_PARTS})  # type: ignore[arg-type]
    host.rates(1.0, first)
    later = replace(
        first,
        host_seconds_total=2.0,
        input_wait_seconds_total=1.5,
        transfer_seconds_total=1.25,
        compute_seconds_total=3.0,
        collective_wait_seconds_total=1.25,
    )
    assert host.rates(1.0 + report_seconds, later) == TrainingRates(
        steps_per_second=0.0,
        host_ratio=0.25,
        compile_wait_ratio=0.0,
        input_wait_ratio=0.125,
        transfer_ratio=0.0625,
        compute_ratio=0.5,
        collective_wait_ratio=0.0625,
    )


def test_parts_of_which_one_fell_are_together_no_more_than_the_whole() -> None:
    host = Host()
    host.rates(1.0, TrainingCounters(host_seconds_total=6.0, input_wait_seconds_total=0.0, compute_seconds_total=1.0))
    told = host.rates(  # a script that says after five seconds that they were waiting
        2.0, TrainingCounters(host_seconds_total=1.0, input_wait_seconds_total=5.0, compute_seconds_total=1.5)
    )
    assert told is not None
    assert told.host_ratio is None
    assert told.input_wait_ratio is not None
    assert told.compute_ratio is not None
    assert told.input_wait_ratio + told.compute_ratio <= 1.0


def test_operators_and_models_have_their_shares_of_the_last_ten_seconds() -> None:
    host = Host()

    def at(moment: float, seconds: float, **fields: Any) -> tuple[float | None, ...]:
        model = LoadedModel(1, "m", "0" * 32, running=True, busy_seconds_total=2 * seconds)
        operators = (OperatorTime("mm", seconds, 1),)
        now = host.training(moment, operators=operators, models=(model,), counted_since_seconds=0.5, **fields)
        return now.operators[0].ratio, now.models[0].busy_ratio

    assert at(1.0, 0.0) == (None, None)
    assert at(2.0, 0.25) == (0.25, 0.5)
    assert at(3.0, 0.25, measured=2.0) == (0.25, 0.5), "no new report: the shares stay"
    for moment in range(3, 12):
        at(float(moment), 0.25)
    assert at(12.0, 0.25 + 4.0) == (0.4, 0.8), "of ten seconds, however long a step is"
    assert at(13.0, 0.1) == (None, None), "what falls is not known"
    assert at(14.0, 9.0, reporting=False) == (None, None)
    host.take(15.0)
    assert at(16.0, 9.5) == (None, None), "who has gone is forgotten"
    assert at(17.0, 12.5) == (1.0, 1.0)


def test_served_models_have_rates_of_the_last_ten_seconds() -> None:
    host = Host()

    def at(
        moment: float,
        calls: int,
        waited_seconds: float,
        since: float = 0.5,
        has_application_requests: bool = False,
        **fields: Any,
    ) -> Any:
        """One report of a model with four requests and eight tokens a call."""
        model = ServedModel(
            "m",
            requests_total=4 * calls,
            calls_total=calls,
            samples_total=6 * calls,
            queue_wait_seconds_total=waited_seconds,
            tokens_total=8 * calls,
            has_application_requests=has_application_requests,
        )
        now = host.training(moment, served_models=(model,), counted_since_seconds=since, **fields)
        return now.served_models[0].rates

    assert at(1.0, 10, 5.0) is None
    told = at(2.0, 11, 6.0)
    assert told == ServedModelRates(4.0, 1.0, 6.0, 0.25, tokens_per_second=8.0)
    assert at(3.0, 11, 6.0, measured=2.0) == told, "no new report: the rates stay"
    for moment in range(3, 12):
        at(float(moment), 11, 6.0)
    assert at(12.0, 31, 6.0) == ServedModelRates(8.0, 2.0, 6.0, 0.0, tokens_per_second=16.0)
    assert at(13.0, 31, 6.0, since=12.5) is None, "it counts anew"
    assert at(14.0, 31, 5.0, since=12.5) == ServedModelRates(0.0, 0.0, tokens_per_second=0.0)
    told = at(15.0, 32, 2.0, since=12.5, has_application_requests=True)
    assert told == ServedModelRates(64.0, 0.0, None, 1 / 64, tokens_per_second=0.0), "its requests are others from now"
    assert at(16.0, 32, 5.0, since=12.5, reporting=False) is None


def test_operators_that_are_told_apart_for_the_first_time_have_shares_at_once() -> None:
    host = Host()

    def at(moment: float, **seconds: float) -> dict[str, float | None]:
        operators = tuple(OperatorTime(name.strip("_"), spent, 1) for name, spent in seconds.items())
        now = host.training(moment, operators=operators, counted_since_seconds=0.5)
        return {each.name: each.ratio for each in now.operators}

    assert at(1.0, _=1.0) == {"": None}
    assert at(2.0, mm=0.25, _=1.0) == {"mm": 0.25, "": 0.0}
    for moment in range(3, 14):
        at(float(moment), mm=0.25, _=1.0)
    assert at(14.0, mm=0.25, add=0.5, _=1.0) == {"mm": 0.0, "add": None, "": 0.0}, "it may have been among the rest"


def steps_at(
    host: Host, moment: float, steps: int, wait: float | None, *, spent: float = 0.0, attached: float = 2.0
) -> RecentSteps | None:
    counters = TrainingCounters(steps_total=steps, collective_wait_seconds_total=wait, host_seconds_total=spent)
    return host.training(moment, training=counters, attached_at_unix_seconds=attached).recent_steps


def test_the_latest_steps_of_a_rank_are_told_in_two_spans() -> None:
    host = Host()
    for moment, steps, wait in (
        (0.0, 1, 0.0),  # the first steps compile
        (1.0, 2, 0.0),
        (2.0, 7, 5.0),  # too few
        (3.0, 10, 0.8),  # one span
    ):
        assert steps_at(host, moment, steps, wait, spent=moment) is None
    told = steps_at(host, 5.0, 18, 4.0, spent=5.0)
    assert told is not None
    assert told.steps == 16
    assert told.least_wait_seconds == pytest.approx(0.1)
    assert told.most_wait_seconds == pytest.approx(0.4)
    parts = dict(zip([part.name for part in STEP_PARTS], told.part_seconds, strict=True))
    assert parts["collective wait"] == pytest.approx(0.25)
    assert parts["host"] == pytest.approx(0.25)
    assert told.step_seconds == pytest.approx(0.5)
    assert steps_at(host, 6.0, 19, 4.0, spent=6.0) == told, "until there are enough new ones"
    assert steps_at(host, 7.0, 26, 4.0, spent=7.0) != told


def test_a_rank_that_counts_anew_or_does_not_count_its_waits_begins_anew() -> None:
    host = Host()
    for moment in range(4):
        steps_at(host, moment, 8 * moment + 2, 1.0 * moment)
    assert steps_at(host, 4.0, 34, 4.0) is not None
    assert steps_at(host, 5.0, 42, None) is None
    assert [steps_at(host, moment, steps, 1.0, attached=9.0) for moment, steps in ((6.0, 10), (7.0, 18))] == [None] * 2
    assert steps_at(host, 8.0, 26, 1.0, attached=9.0) is not None
    host.take(9.0)
    assert steps_at(host, 10.0, 34, 1.0, attached=9.0) is None, "who has gone is forgotten"
