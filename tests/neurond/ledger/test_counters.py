"""What cores and processes counted, over all who held them."""

from __future__ import annotations

import pytest
from neurond.ownership import ledger
from neurond.ownership.holding import CoreReport, Report
from neurond.ownership.ledger import Ledger

from neurontools import model
from neurontools.nrt.core_request import CoreRequest
from tests.harness.ledger_parts import LARGEST, TRN1, TRN2, core_report, entered, report_of


def test_counters_run_on_from_owner_to_owner() -> None:
    host = Ledger(TRN2)
    for round_, token in enumerate("ab", 1):
        holding = host.attach(entered(host, token), CoreRequest(0, 1))
        host.report(token, report_of({0: CoreReport(1.5, 7, 3, last_execution_at_unix_seconds=10.0 * round_)}))
        counted = [host.counters_of(index, holding) for index in (0, 1)]
        assert [core.busy_seconds_total for core in counted] == [1.5 * round_] * 2
        assert [core.executions_total for core in counted] == [3 * round_] * 2
        assert [core.flop_total for core in counted] == [4 * round_, 3 * round_], "7 in two parts"
        host.leave(token)
        assert [host.counters[index] for index in (0, 1)] == counted
    assert host.counters[0].last_execution_at_unix_seconds == 20.0


def test_counters_of_a_core_stay_within_their_fields() -> None:
    """However much its owners report, one after the other: what doesn't fit 64 bits can't be sent to anybody."""
    host = Ledger(TRN1)
    for token in "abcd":
        holding = host.attach(entered(host, token), CoreRequest(0, 1))
        host.report(token, report_of({0: CoreReport(1e12, LARGEST, LARGEST)}))
        counted = host.counters_of(0, holding)
        assert (counted.flop_total, counted.executions_total) == (LARGEST, LARGEST)
        host.leave(token)


def test_the_counters_of_logical_cores_are_those_of_their_physical_ones_wherever_they_are() -> None:
    host = Ledger(TRN2)
    holding = host.attach(entered(host, "a"), CoreRequest(3, 2))
    reports = {0: CoreReport(1.0, 5, 2, last_execution_at_unix_seconds=7.0), 1: CoreReport(3.0, 8, 4)}
    host.report("a", report_of(reports))
    counted = {index: host.counters_of(index, holding) for index in range(6, 10)}
    assert [(core.busy_seconds_total, core.flop_total, core.executions_total) for core in counted.values()] == [
        (1.0, 3, 2),
        (1.0, 2, 2),
        (3.0, 4, 4),
        (3.0, 4, 4),
    ]
    host.leave("a")
    assert host.counters[:6] == [ledger.CoreCounters()] * 6
    assert host.counters[6:10] == list(counted.values())
    assert [core.last_execution_at_unix_seconds for core in counted.values()] == [7.0, 7.0, None, None]


def test_a_core_without_executions_keeps_when_its_owners_before_last_executed() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.report("a", report_of({0: CoreReport(last_execution_at_unix_seconds=7.0)}))
    host.leave("a")
    holding = host.attach(entered(host, "b"), CoreRequest(0, 1))
    assert host.counters_of(0, holding) == host.counters[0], "nothing is reported yet"
    host.report("b", report_of({0: CoreReport()}))
    assert host.counters_of(0, holding).last_execution_at_unix_seconds == 7.0


@pytest.mark.parametrize("name", ["busy_seconds_total", "flop_total", "executions_total"])
def test_a_counter_of_a_core_that_falls_is_refused(name: str) -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({2: core_report(name, 5)}))
    with pytest.raises(ledger.InvalidReport, match=f"{name} of core 2 fell from 5 to 4"):
        host.report("a", report_of({2: core_report(name, 4)}))


def test_time_that_runs_backwards_is_refused() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({}, 2.0))
    host.report("a", report_of({}, 2.0))
    with pytest.raises(ledger.InvalidReport, match="measured_at_seconds is earlier"):
        host.report("a", report_of({}, 1.5))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({"executions": model.ExecutionCounters(3)}, {}, "executions.completed_total fell from 3 to 0"),
        ({"errors": model.ErrorCounters(hardware_total=1)}, {}, "errors.hardware_total fell from 1 to 0"),
        (
            {"training": model.TrainingCounters(steps_total=3)},
            {"training": model.TrainingCounters(steps_total=2)},
            "training.steps_total fell from 3 to 2",
        ),
    ],
)
def test_a_counter_of_a_process_that_falls_is_refused(
    before: dict[str, model.ExecutionCounters], now: dict[str, model.ExecutionCounters], text: str
) -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest())
    host.report("a", Report(1.0, {}, **before))  # type: ignore[arg-type]
    with pytest.raises(ledger.InvalidReport, match=text):
        host.report("a", Report(1.0, {}, **now))  # type: ignore[arg-type]


def test_what_a_process_counted_before_the_ledger_is_no_count_of_the_core() -> None:
    host = Ledger(TRN2, began_seconds=100.0)
    token = entered(host, "old")
    host.attach(token, CoreRequest(1, 1, 2))
    for executions, flop in ((500, 7001), (510, 7012)):
        core = CoreReport(50.0 + executions, flop, executions)
        host.report(token, Report(200.0, {0: core}, counted_since_seconds=99.0))
    holding = host.known(token)
    first, second = (host.counters_of(index, holding) for index in (2, 3))
    assert (first.busy_seconds_total, first.executions_total) == (10.0, 10)
    assert (first.flop_total, second.flop_total) == (6, 5)
    host.leave(token)
    assert host.counters[2].executions_total == 10, "they stay the core's"


def test_a_process_younger_than_the_ledger_counts_from_its_first_report() -> None:
    host = Ledger(TRN1, began_seconds=100.0)
    host.attach(entered(host, "new"), CoreRequest(0, 1))
    host.report("new", Report(200.0, {0: CoreReport(1.0, 7, 3)}, counted_since_seconds=100.0))
    assert host.counters_of(0, host.known("new")).executions_total == 3


def test_a_process_begins_no_new_count_while_it_is_attached() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.report("a", Report(1.0, {}, counted_since_seconds=0.5))
    with pytest.raises(ledger.InvalidReport, match="counted_since_seconds"):
        host.report("a", Report(2.0, {}, counted_since_seconds=0.75))
