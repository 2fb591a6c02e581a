"""What a period tells, from pairs of snapshots made by hand; also where the daemon was restarted in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neurontools.exporters.monitor.period import LONGEST_AWAY_SECONDS, RecordBaseline, RecordPeriod
from neurontools.model import (
    CoreWork,
    ErrorCounters,
    ExecutionCounters,
    LatencyHistogram,
    LatencyPercentiles,
    NeuronCore,
    Process,
    Snapshot,
    execution,
)
from tests.harness.snapshots import process_of, snapshot_of

KNOWN = LatencyPercentiles(*[0.5] * 7)
HOST = snapshot_of("trn1.2xlarge")


def at(seconds: float, process: Process | None = None, core: NeuronCore | None = None) -> Snapshot:
    cores = HOST.cores if core is None else (core, *HOST.cores[1:])
    return replace(HOST, taken_at_seconds=seconds, processes=() if process is None else (process,), cores=cores)


def period_of(now: Snapshot, before: Snapshot | None) -> RecordPeriod:
    return RecordPeriod(now, None if before is None else RecordBaseline.initial(before))


def training(**changes: Any) -> Process:
    values: dict[str, Any] = {"attached_at_unix_seconds": 1.0} | changes
    return replace(process_of(7, "train", (0,)), **values)


def completed(now: Snapshot, baseline: RecordBaseline | None) -> int | None:
    """Executions of the one process within the period."""
    counts = RecordPeriod(now, baseline).counts("executions", now.processes[0])
    return None if counts is None else counts["completed"]


def core_of(owner_pid: int | None, **changes: Any) -> NeuronCore:
    return replace(HOST.cores[0], owner_pid=owner_pid, **changes)


def histogram(**counts: int) -> LatencyHistogram:
    """Counts by bucket: `b50=3` is three in bucket 50."""
    return LatencyHistogram(tuple(int(name[1:]) for name in counts), tuple(counts.values()), 1.0)


def test_a_past_of_the_same_moment_is_a_past_and_a_later_one_is_none() -> None:
    now = at(10.0, training())
    assert (period_of(now, at(7.5)).seconds, period_of(now, now).seconds) == (2.5, 0.0)
    assert period_of(now, now).process_before(now.processes[0]) is now.processes[0]
    later = period_of(now, at(11.0, training()))
    assert (later.before, later.seconds, later.process_before(now.processes[0])) == (None, 0.0, None)


def test_a_process_that_attached_again_under_its_old_pid_is_another_one() -> None:
    again = training(attached_at_unix_seconds=2.0)
    assert period_of(at(2.0, again), at(1.0, training())).process_before(again) is None


def test_counts_are_the_growth_and_never_below_zero() -> None:
    before = training(executions=ExecutionCounters(5, 3), errors=ErrorCounters(1))
    now = training(executions=ExecutionCounters(9, 1), errors=ErrorCounters(4, 2))
    period = period_of(at(2.0, now), at(1.0, before))
    counted = period.counts("executions", now)
    assert counted == {
        "completed": 4,
        "completed_with_err": 0,
        "completed_with_num_err": 0,
        "timed_out": 0,
        "incorrect_input": 0,
        "failed_to_queue": 0,
    }
    errors = period.counts("errors", now)
    assert errors is not None
    assert (errors["generic"], errors["numerical"]) == (3, 2)


def test_without_a_past_nothing_was_counted_and_a_process_that_came_since_counted_all() -> None:
    now = at(2.0, training(executions=ExecutionCounters(9)))
    assert completed(now, None) == 0
    for before in (at(1.0), at(1.0, training(executions=None))):
        assert completed(now, RecordBaseline.initial(before)) == 9
    assert completed(at(2.0, training(executions=None)), RecordBaseline.initial(at(1.0))) is None


@pytest.mark.parametrize("name", ["total_latency", "device_latency"])
def test_latency_is_of_what_ran_in_the_period(name: str) -> None:
    def told(now: Process, before: Snapshot | None) -> LatencyPercentiles | None:
        return period_of(at(2.0, now), before).latency(name, now)

    def process(seen: LatencyHistogram) -> Process:
        return training(**{f"{name}_histogram": seen, name: KNOWN})

    now = process(histogram(b50=3, b90=2))
    of_bucket = {bucket: execution.latency_percentiles(histogram(**{f"b{bucket}": 1})) for bucket in (50, 90)}
    assert told(now, at(1.0, process(histogram(b50=3)))) == of_bucket[90]
    assert told(now, at(1.0, process(histogram(b50=3, b90=2)))) is None, "nothing ran"
    everything = execution.latency_percentiles(histogram(b50=3, b90=2))
    assert told(now, at(1.0)) == everything, "it attached within the period"
    assert told(now, at(1.0, process(histogram(b50=4)))) == everything, "its counts began anew"
    assert told(now, None) == KNOWN, "without a past it is what the daemon derived"
    assert told(process(LatencyHistogram()), at(1.0)) is None


def rates(now: NeuronCore, before: NeuronCore, owner_before: Process | None, seconds: float = 4.0) -> tuple[Any, Any]:
    owner = training()
    return period_of(at(10.0 + seconds, owner, now), at(10.0, owner_before, before)).core_rates(now, owner)


def test_what_a_process_tells_is_of_the_time_between_its_reports() -> None:
    def seconds(before: Process | None, measured_at_seconds: float | None) -> float:
        now = training(measured_at_seconds=measured_at_seconds)
        return period_of(at(14.0, now), at(10.0, before)).seconds_of(now)

    assert seconds(training(measured_at_seconds=9.25), 13.5) == 4.25
    assert seconds(training(measured_at_seconds=9.25), 9.25) == 4.0, "it told nothing since, in all of it"
    assert seconds(None, 13.5) == 4.0, "it came within the period"
    assert seconds(training(measured_at_seconds=None), 13.5) == 4.0, "its first report came within the period"
    assert seconds(training(measured_at_seconds=None), None) == 4.0


OF_THE_DAEMON = (0.9, 9.0)
BEFORE = core_of(7, busy_seconds_total=1.0, flop_total=100, measured_at_seconds=9.0)
NOW = replace(
    BEFORE,
    busy_seconds_total=2.0,
    flop_total=300,
    measured_at_seconds=11.0,
    utilization_ratio=0.9,
    flops_per_second=9.0,
)


@pytest.mark.parametrize(
    ("before", "owner_before", "expected"),
    [
        pytest.param({}, training(), (0.5, 100.0), id="between its own two reports"),
        pytest.param(
            {"owner_pid": None, "measured_at_seconds": None}, None, (0.25, 50.0), id="free: all of the period"
        ),
        pytest.param({"measured_at_seconds": None}, training(), (0.25, 50.0), id="untold: all of the period"),
        pytest.param({"owner_pid": 8}, training(), OF_THE_DAEMON, id="another owner"),
        pytest.param({}, None, OF_THE_DAEMON, id="gone"),
        pytest.param({}, training(attached_at_unix_seconds=0.5), OF_THE_DAEMON, id="attached anew"),
        pytest.param({"measured_at_seconds": 11.0}, training(), OF_THE_DAEMON, id="the same report"),
        pytest.param({"measured_at_seconds": 10.5}, training(), (1.0, 400.0), id="reports half a second apart"),
        pytest.param({"busy_seconds_total": 5.0, "flop_total": 500}, training(), OF_THE_DAEMON, id="counters fell"),
        pytest.param({"busy_seconds_total": None, "flop_total": None}, training(), OF_THE_DAEMON, id="unknown"),
    ],
)
def test_the_rates_of_a_core_are_those_of_its_growth_where_that_tells_something(
    before: dict[str, Any], owner_before: Process | None, expected: tuple[float, float]
) -> None:
    assert rates(NOW, replace(BEFORE, **before), owner_before) == expected


def test_the_rates_of_a_core_at_their_limits() -> None:
    assert rates(replace(NOW, busy_seconds_total=9.0), BEFORE, training())[0] == 1.0, "never above 1"
    assert rates(replace(BEFORE, measured_at_seconds=11.0), BEFORE, training()) == (0.0, 0.0)
    assert rates(NOW, replace(BEFORE, owner_pid=None), None, seconds=0.0) == OF_THE_DAEMON, "no time passed"
    assert rates(replace(NOW, measured_at_seconds=None), core_of(None), None) == OF_THE_DAEMON, "it has no report"
    without_cores = replace(at(1.0, training()), cores=())
    for past in (without_cores, None):
        assert period_of(at(5.0, training(), NOW), past).core_rates(NOW, training()) == OF_THE_DAEMON


def test_vcpus_are_counted_over_the_period() -> None:
    before = training(cpu_user_seconds_total=10.0, cpu_system_seconds_total=1.0)
    now = training(cpu_user_seconds_total=18.0, cpu_system_seconds_total=2.0, vcpu_user_ratio=9.0)
    assert period_of(at(14.0, now), at(10.0, before)).vcpu_ratios(now) == (2.0, 0.25)
    assert period_of(at(14.0, before), at(10.0, before)).vcpu_ratios(before) == (0.0, 0.0)
    assert period_of(at(10.5, now), at(10.0, before)).vcpu_ratios(now) == (16.0, 2.0)
    fell = replace(before, cpu_user_seconds_total=19.0)
    assert period_of(at(14.0, now), at(10.0, fell)).vcpu_ratios(now) == (None, 0.25)
    unread = replace(before, cpu_system_seconds_total=None)
    assert period_of(at(14.0, now), at(10.0, unread)).vcpu_ratios(now) == (2.0, None)


def test_without_a_past_vcpus_are_those_that_the_daemon_counted() -> None:
    now = training(cpu_user_seconds_total=18.0, vcpu_user_ratio=0.5, vcpu_system_ratio=0.25)
    for before in (None, at(10.0), at(14.0, now)):
        assert period_of(at(14.0, now), before).vcpu_ratios(now) == (0.5, 0.25)
    assert period_of(at(14.0, now), None).seconds == 0.0


@pytest.mark.parametrize(("since_seconds", "is_counted"), [(None, True), (5.0, True), (4.9, False)])
def test_what_a_process_counted_before_the_first_record_is_of_no_period(
    since_seconds: float | None, is_counted: bool
) -> None:
    seen = histogram(b50=3)
    now = training(
        counted_since_seconds=since_seconds,
        executions=ExecutionCounters(9),
        total_latency=KNOWN,
        total_latency_histogram=seen,
    )
    core = core_of(7, busy_seconds_total=2.0, flop_total=20, measured_at_seconds=11.0, utilization_ratio=0.9)
    period = RecordPeriod(at(12.0, now, core), RecordBaseline(at(10.0), began_seconds=5.0))
    assert completed(period.now, RecordBaseline(at(10.0), began_seconds=5.0)) == (9 if is_counted else 0)
    assert period.latency("total_latency", now) == (execution.latency_percentiles(seen) if is_counted else KNOWN)
    free = replace(period.now.cores[0], owner_pid=None, busy_seconds_total=1.0, flop_total=10)
    freed = RecordPeriod(at(12.0, now, core), RecordBaseline(at(10.0, None, free), began_seconds=5.0))
    assert freed.core_rates(core, now) == ((0.5, 5.0) if is_counted else (0.9, None))


def test_a_process_that_a_restarted_daemon_has_not_seen_goes_on_from_when_it_was_last_seen() -> None:
    away = training(counted_since_seconds=3.0, executions=ExecutionCounters(4))
    now = replace(away, attached_at_unix_seconds=9.0, executions=ExecutionCounters(6))
    baseline = RecordBaseline(at(10.0), 10.0, {(7, 3.0): away})
    period = RecordPeriod(at(12.0, now), baseline)
    assert period.process_before(now) is away
    assert completed(period.now, baseline) == 2
    assert period.process_before(replace(now, counted_since_seconds=3.5)) is None
    assert period.process_before(replace(now, counted_since_seconds=None)) is None


def of_daemon(daemon_pid: int, seconds: float, done: int | None) -> Snapshot:
    """With a process that has executed so often since it was started; None: without it."""
    executions = ExecutionCounters(done or 0)
    process = training(counted_since_seconds=1.5, executions=executions, measured_at_seconds=seconds)
    return replace(at(seconds, None if done is None else process), daemon_pid=daemon_pid)


def test_a_process_that_a_restarted_daemon_has_not_seen_yet_is_waited_for() -> None:
    gone, back = of_daemon(2, 11.0, None), of_daemon(2, 13.0, 6)
    baseline = RecordBaseline.initial(of_daemon(1, 10.0, 4)).next(gone)
    assert completed(back, baseline) == 2
    baseline = baseline.next(back)
    assert not baseline.absent
    assert completed(of_daemon(2, 14.0, 9), baseline) == 3


def test_a_process_that_never_comes_back_is_forgotten_at_once_where_the_daemon_is_the_same() -> None:
    first = RecordBaseline.initial(of_daemon(1, 10.0, 4))
    assert not first.next(of_daemon(1, 11.0, None)).absent
    baseline = first.next(of_daemon(2, 11.0, None))
    assert len(baseline.absent) == 1
    assert len(baseline.next(of_daemon(2, 10.0 + LONGEST_AWAY_SECONDS, None)).absent) == 1
    assert not baseline.next(of_daemon(2, 10.5 + LONGEST_AWAY_SECONDS, None)).absent


def test_what_was_counted_before_the_first_record_is_in_none() -> None:
    empty, now = of_daemon(1, 10.0, None), of_daemon(1, 12.0, 9)
    assert completed(now, RecordBaseline.initial(empty)) == 0
    young = replace(now.processes[0], counted_since_seconds=10.0)
    assert completed(replace(now, processes=(young,)), RecordBaseline.initial(empty)) == 9


def test_a_process_that_is_attached_again_and_has_not_told_anything_yet_is_no_beginning() -> None:
    back = of_daemon(2, 12.0, 0)
    untold = replace(back.processes[0], counted_since_seconds=None, measured_at_seconds=None)
    baseline = RecordBaseline.initial(of_daemon(1, 10.0, 4)).next(replace(back, processes=(untold,)))
    assert completed(of_daemon(2, 13.0, 6), baseline) == 2


def test_cores_whose_counters_began_anew_have_the_rates_of_the_daemon() -> None:
    restarted = replace(at(12.0, training(), NOW), cores_counted_since_seconds=10.0)
    for past_count, told in ((5.0, OF_THE_DAEMON), (10.0, (0.5, 100.0))):
        past = replace(at(10.0, training(), BEFORE), cores_counted_since_seconds=past_count)
        assert period_of(restarted, past).core_rates(NOW, training()) == told


def working(busy_seconds: float, flop: int, measured_at_seconds: float, **changes: Any) -> Process:
    """A process that has done so much on its core since 2.0."""
    return training(
        core_work=(CoreWork(busy_seconds, flop),),
        measured_at_seconds=measured_at_seconds,
        **({"counted_since_seconds": 2.0} | changes),
    )


def test_what_a_process_did_on_a_core_goes_by_its_own_count() -> None:
    now = working(3.0, 900, 13.5)
    period = period_of(at(14.0, now), at(10.0, working(1.0, 100, 9.5)))
    assert period.work_rates(now, 0) == (0.5, 200.0)
    assert period.work_rates(now, 1) is None
    for changed in ({"neuroncore_indices": (5,)}, {"core_work": ()}):
        before = replace(working(1.0, 100, 9.5), **changed)
        assert period_of(at(14.0, now), at(10.0, before)).work_rates(now, 0) is None


def test_who_takes_a_core_over_within_a_period_did_there_what_it_counts() -> None:
    follower = working(1.0, 400, 13.5, counted_since_seconds=12.0)
    period = period_of(at(14.0, follower), at(10.0, replace(working(7.0, 9000, 9.5), pid=6)))
    assert period.work_rates(follower, 0) == (0.25, 100.0)
    older = working(5.0, 800, 13.5, counted_since_seconds=3.0)
    assert period_of(at(14.0, older), at(10.0)).work_rates(older, 0) is None, "some of it was done before"


def test_a_process_that_was_attached_to_an_earlier_daemon_went_on_counting() -> None:
    before = replace(at(10.0, working(1.0, 100, 9.5)), daemon_pid=1, sequence=50)
    between = replace(at(12.0), daemon_pid=2, sequence=1)
    now = working(3.0, 900, 13.5)
    baseline = RecordBaseline.initial(before).next(between)
    period = RecordPeriod(replace(at(14.0, now), daemon_pid=2, sequence=3), baseline)
    assert period.work_rates(now, 0) == (0.5, 200.0)


def test_a_period_without_a_report_is_no_period_of_work() -> None:
    now = working(3.0, 900, 9.5)
    period = period_of(at(14.0, now), at(10.0, now))
    assert not period.has_report(now)
    assert period.work_rates(now, 0) is None
