from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from neurond.ownership import ledger
from neurond.ownership.holding import CoreReport, Holding, Report
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape

from neurontools import model
from neurontools.nrt.core_request import CoreRequest
from tests.harness.examples import examples

TRN1 = Shape(2, 2, 2, 16 * 2**30, 1, (1,))
INF1 = Shape(1, 4, 2, 4 * 2**30, 1, (1,))
TRN2 = Shape(2, 8, 4, 1000, 2, (1, 2))
LARGEST = 2**63 - 1


def entered(of: Ledger, token: str, pid: int | None = None) -> str:
    of.enter(token, pid or 100 + len(list(of.holdings)), 0, 1.0)
    return token


def report_of(cores: dict[int, CoreReport], measured_at_seconds: float = 1.0) -> Report:
    return Report(measured_at_seconds, cores)


def core_report(name: str, value: Any) -> CoreReport:
    values: dict[str, Any] = {name: value}
    return CoreReport(**values)


def tensors(size_bytes: int) -> CoreReport:
    return CoreReport(memory=model.DeviceMemory(tensors_bytes=size_bytes))


def test_all_cores_when_nothing_is_asked_for() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest())
    assert (holding.logical_cores, holding.physical_cores()) == (range(4), range(4))
    assert holding.devices(TRN1) == (0, 1)


def test_a_process_without_variables_is_refused_when_one_core_is_taken() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 77), CoreRequest(1, 1))
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "b"), CoreRequest())
    assert str(refused.value) == (
        "NeuronCore(s) not available - Requested:nc0-nc3 Available:3; held by PID 77; end them or ask for other cores"
    )


def test_the_first_run_that_fits() -> None:
    host = Ledger(Shape(4, 2, 2, 100, 1, (1,)))
    host.attach(entered(host, "a"), CoreRequest(1, 1))
    host.attach(entered(host, "b"), CoreRequest(4, 1))
    assert host.attach(entered(host, "c"), CoreRequest(count=2)).first == 2
    assert host.attach(entered(host, "d"), CoreRequest(count=1)).first == 0
    assert host.attach(entered(host, "e"), CoreRequest(count=3)).first == 5


def test_free_cores_that_are_apart_are_not_enough() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 77), CoreRequest(1, 1))
    host.attach(entered(host, "b", 78), CoreRequest(3, 1))
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "c"), CoreRequest(count=2))
    assert str(refused.value) == (
        "NeuronCore(s) not available - Requested:2 Available:2 (free ones are not contiguous); held by PID 77, 78; "
        "end them or ask for other cores"
    )


def test_the_words_of_the_runtime_for_busy_cores() -> None:
    """runtime.md, section 5: the texts that users and scripts know."""
    old, new = Ledger(TRN1), Ledger(TRN2)
    old.attach(entered(old, "a"), CoreRequest())
    new.attach(entered(new, "a"), CoreRequest())
    for host, request, text in (
        (old, CoreRequest(1, 1), "NeuronCore(s) not available - Requested:nc1-nc1 Available:0"),
        (old, CoreRequest(count=1), "NeuronCore(s) not available - Requested:1 Available:0"),
        (
            new,
            CoreRequest(0, 1),
            (
                "Logical Neuron Core(s) not available - Requested:lnc0-lnc0 Available:0 Logical Core size:2 "
                "(cores busy, ret=-16)"
            ),
        ),
    ):
        with pytest.raises(ledger.CoresUnavailable) as refused:
            host.attach(entered(host, f"b{text}"), request)
        assert str(refused.value).startswith(text)


def test_at_most_four_holders_are_named() -> None:
    host = Ledger(Shape(8, 1, 1, 100, 1, (1,)))
    for number in range(6):
        host.attach(entered(host, str(number), 10 + number), CoreRequest(count=1))
    with pytest.raises(ledger.CoresUnavailable, match="held by PID 10, 11, 12, 13 and 2 more;"):
        host.attach(entered(host, "z"), CoreRequest())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (CoreRequest(4, 1), "NEURON_RT_VISIBLE_CORES=4-4: this host has NeuronCores 0-3"),
        (CoreRequest(3, 2), "NEURON_RT_VISIBLE_CORES=3-4: this host has NeuronCores 0-3"),
        (CoreRequest(2**32 - 1, 2**32 - 1), "this host has NeuronCores 0-3"),
        (CoreRequest(0, 0), "this host has NeuronCores 0-3"),
        (CoreRequest(count=5), "NEURON_RT_NUM_CORES=5: this host has 4 NeuronCores; ask for 1 to 4"),
        (CoreRequest(count=0), "NEURON_RT_NUM_CORES=0: this host has 4 NeuronCores"),
        (CoreRequest(logical_neuroncore_config=2), "NEURON_LOGICAL_NC_CONFIG=2 is not possible on this hardware"),
    ],
)
def test_what_the_host_can_never_have(request_: CoreRequest, text: str) -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest(0, 1))
    with pytest.raises(ledger.ImpossibleRequest) as refused:
        host.attach(entered(host, "b"), request_)
    assert text in str(refused.value)


def test_processes_of_different_lncs_share_a_host() -> None:
    host = Ledger(TRN2)
    pairs = host.attach(entered(host, "pairs"), CoreRequest(count=2))
    assert (pairs.lnc, pairs.physical_cores()) == (2, range(4))
    singles = host.attach(entered(host, "singles"), CoreRequest(count=3, logical_neuroncore_config=1))
    assert (singles.lnc, singles.logical_cores, singles.physical_cores()) == (1, range(4, 7), range(4, 7))
    # Core 7 is free, but its partner isn't: the next pair begins at 8.
    assert host.attach(entered(host, "more"), CoreRequest(count=1)).physical_cores() == range(8, 10)
    with pytest.raises(ledger.CoresUnavailable, match="Requested:lnc3-lnc3 Available:0"):
        host.attach(entered(host, "half"), CoreRequest(3, 1))


def test_a_process_attaches_once() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 7), CoreRequest(0, 1))
    with pytest.raises(ledger.AlreadyAttached, match="PID 7 holds cores already"):
        host.attach("a", CoreRequest(1, 1))
    with pytest.raises(ledger.AlreadyAttached):
        host.enter("a", 8, 0, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda host: host.attach("?", CoreRequest()),
        lambda host: host.report("?", report_of({})),
        lambda host: host.known("?"),
    ],
)
def test_an_unknown_token(call: Callable[[Ledger], object]) -> None:
    with pytest.raises(ledger.UnknownToken, match="connect to the attach socket"):
        call(Ledger(TRN1))


def test_leaving_twice_is_harmless() -> None:
    changes: list[None] = []
    host = Ledger(TRN1, lambda: changes.append(None))
    host.attach(entered(host, "a"), CoreRequest())
    host.leave("a")
    host.leave("a")
    assert len(changes) == 3
    assert not list(host.holdings)


def test_an_observer_reports_nothing() -> None:
    host = Ledger(TRN1)
    with pytest.raises(ledger.InvalidReport, match="holds no cores; call Attach before Report"):
        host.report(entered(host, "a"), report_of({}))


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


def test_what_a_process_brings_and_asks_for_is_kept() -> None:
    host = Ledger(TRN2)
    watching = host.enter("a", 71, 1000, 5.0)
    assert (watching.pid, watching.uid, watching.attached_at_unix_seconds, watching.lnc) == (71, 1000, 5.0, 2)
    assert (watching.tag, watching.runtime_version, watching.synthetic, watching.count) == ("71", None, False, 0)
    assert [host.owner(core) for core in range(16)] == [None] * 16
    holding = host.attach("a", CoreRequest(1, 1), "job", "2.34")
    assert (holding.tag, holding.runtime_version) == ("job", "2.34")
    assert [core for core in range(16) if host.owner(core) is holding] == [2, 3]
    assert list(host.holdings) == [holding]
    untold = host.attach(entered(host, "b", 72), CoreRequest(count=1))
    assert (untold.tag, untold.runtime_version) == ("72", "")
    assert host.enter("c", 73, 0, 6.0, synthetic=True).synthetic


def test_observers_of_the_same_process_are_no_reason_against_attaching() -> None:
    host = Ledger(TRN1)
    host.enter("watching", 7, 0, 1.0)
    assert host.attach(entered(host, "a", 7), CoreRequest(0, 1)).count == 1
    assert host.attach(entered(host, "b", 8), CoreRequest(1, 1)).count == 1


def test_every_change_of_ownership_is_told() -> None:
    changes: list[list[int]] = []
    host = Ledger(TRN1, lambda: changes.append([core for core in range(4) if host.owner(core)]))
    host.attach(entered(host, "a"), CoreRequest(1, 2))
    host.report("a", report_of({0: tensors(1)}))
    host.leave("a")
    assert changes == [[], [1, 2], []]


def test_a_core_beyond_those_of_the_process_is_refused_and_nothing_is_kept() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 2))
    for index in (-1, 2):
        with pytest.raises(ledger.InvalidReport, match=f"core {index} is not one of the 2 cores of this process"):
            host.report("a", report_of({0: tensors(1), index: tensors(1)}))
    assert (holding.report, holding.cores) == (None, {})
    accepted = report_of({1: tensors(1)})
    host.report("a", accepted)
    assert holding.report is accepted


def test_both_lncs_of_the_hardware_are_named_to_who_asks_for_another() -> None:
    host = Ledger(TRN2)
    with pytest.raises(ledger.ImpossibleRequest, match=r"CONFIG=3 is not possible .*; set it to 1 or 2, or unset it"):
        host.attach(entered(host, "a"), CoreRequest(logical_neuroncore_config=3))


def test_a_core_that_is_not_there_is_refused_with_the_cores_that_are() -> None:
    host = Ledger(TRN1)
    with pytest.raises(ledger.ImpossibleRequest, match="NEURON_RT_VISIBLE_CORES=-1-1: this host has NeuronCores 0-3"):
        host.attach(entered(host, "a"), CoreRequest(-1, 3))
    assert host.attach("a", CoreRequest(3, 1)).logical_cores == range(3, 4)


def test_free_cores_are_enough_when_they_are_all_there_are() -> None:
    host = Ledger(TRN1)
    assert host.attach(entered(host, "a"), CoreRequest(count=4)).logical_cores == range(4)
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "b", 72), CoreRequest(count=1))
    assert "not contiguous" not in str(refused.value)
    assert "and 0 more" not in str(refused.value)


def test_four_holders_are_all_named() -> None:
    host = Ledger(TRN1)
    for pid in (11, 12, 13, 14):
        host.attach(entered(host, str(pid), pid), CoreRequest(count=1))
    with pytest.raises(ledger.CoresUnavailable, match="held by PID 11, 12, 13, 14; end them"):
        host.attach(entered(host, "z"), CoreRequest(count=1))


def test_a_stack_is_shared_by_all_who_allocate_from_it_wherever_it_is() -> None:
    """Two HBM stacks of four cores each, and processes with LNC 2: those on logical cores 2 and 3 share the second."""
    host = Ledger(Shape(1, 8, 2, 1000, 2, (1, 2)))
    both = host.attach(entered(host, "both", 71), CoreRequest(1, 2))
    last = host.attach(entered(host, "last", 72), CoreRequest(3, 1))
    assert (host.holders_of_stack(0), host.holders_of_stack(1)) == ([both], [both, last])
    host.report("both", report_of({0: tensors(1000), 1: tensors(600)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1000, 600]
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("last", report_of({0: tensors(401)}))
    host.report("last", report_of({0: tensors(400)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("both", report_of({1: tensors(601)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("both", report_of({0: tensors(1001)}))
    host.report("both", report_of({0: tensors(1)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1, 600]


def test_all_cores_of_a_process_on_one_stack_count_together_those_too_that_a_report_leaves_out() -> None:
    host = Ledger(Shape(1, 4, 1, 1000, 1, (1,)))
    host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({0: tensors(600), 1: tensors(300)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("a", report_of({2: tensors(101)}))
    host.report("a", report_of({2: tensors(100)}))


def test_memory_that_is_not_told_takes_no_room() -> None:
    unknown = CoreReport(memory=model.DeviceMemory(*[None] * 11))
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.attach(entered(host, "b"), CoreRequest(1, 1))
    host.report("a", report_of({0: unknown}))
    assert host.stack_bytes_of(holding, 0) == 0
    host.report("b", report_of({0: tensors(TRN1.stack_bytes)}))


def test_a_core_that_a_report_leaves_out_keeps_what_it_had() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({0: tensors(5), 1: tensors(6)}))
    host.report("a", report_of({1: tensors(7)}))
    assert [holding.memory_of(index).tensors_bytes for index in range(4)] == [5, 7, None, None]


def test_memory_of_a_logical_core_is_shared_out_to_the_byte() -> None:
    host = Ledger(TRN2)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.report("a", report_of({0: CoreReport(memory=model.DeviceMemory(tensors_bytes=7, constants_bytes=None))}))
    memories = [holding.memory_of(index) for index in (0, 1)]
    assert [memory.tensors_bytes for memory in memories] == [4, 3]
    assert [memory.constants_bytes for memory in memories] == [None, None]


def test_out_of_memory_tells_who_holds_the_stack() -> None:
    host = Ledger(TRN2)
    for token, pid, first in (("a", 71, 0), ("b", 72, 1)):
        host.enter(token, pid, 0, 1.0)
        host.attach(token, CoreRequest(first, 1, 1))
    host.report("a", report_of({0: tensors(600)}))
    host.report("b", report_of({0: tensors(400)}))
    with pytest.raises(ledger.OutOfDeviceMemory) as refused:
        host.report("b", report_of({0: tensors(401)}))
    headline, titles, *rows = str(refused.value).splitlines()
    assert headline.startswith("out of device memory: PID 72 asks for 401 B on device 0 HBM 0, which has 1000 B and")
    assert "400 B for it" in headline
    assert titles.split() == ["PID", "NEURONCORES", "BYTES", "SIZE"]
    assert [row.split()[:3] for row in rows] == [["71", "0-0", "600"], ["72", "1-1", "400"], ["72", "asks", "for"]]
    holding = host.known("b")
    assert holding.memory_of(1).tensors_bytes == 400, "what was accepted stays"


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


requests = st.builds(
    CoreRequest,
    first=st.none() | st.integers(-1, 17),
    count=st.none() | st.integers(-1, 17),
    logical_neuroncore_config=st.sampled_from([None, 0, 1, 2, 3]),
)
amounts = st.integers(0, 700) | st.sampled_from([1000, 1001, LARGEST])
core_reports = st.builds(
    CoreReport,
    busy_seconds_total=st.floats(0, 1e12),
    flop_total=st.integers(0, 50) | st.just(LARGEST),
    executions_total=st.integers(0, 50) | st.just(LARGEST),
    memory=st.builds(model.DeviceMemory, tensors_bytes=amounts, collectives_bytes=st.none() | amounts),
)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside a list of who owns what, in any order of events."""

    tokens: Bundle[str] = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.shape = TRN2
        self.ledger = Ledger(self.shape)
        self.owners: dict[int, str] = {}  # by physical core
        self.bytes: dict[tuple[str, int], int] = {}  # by token and local core
        self.attached: set[str] = set()
        self.number = 0
        self.highest = [(0.0, 0, 0)] * self.shape.core_count

    @rule(target=tokens)
    def enter(self) -> str:
        self.number += 1
        token = f"token {self.number}"
        holding = self.ledger.enter(token, 1000 + self.number, 0, float(self.number))
        assert not holding.physical_cores()
        return token

    @rule(token=tokens, request=requests)
    def attach(self, token: str, request: CoreRequest) -> None:
        before = self.state()
        expected, kind = self.expected_cores(token, request)
        try:
            holding = self.ledger.attach(token, request)
        except ledger.Refusal as refused:
            assert type(refused) is kind
            assert self.state() == before
            if kind is ledger.CoresUnavailable:
                assert "not available - Requested:" in str(refused)
                assert "held by PID 1" in str(refused)
        else:
            assert list(holding.physical_cores()) == expected
            self.attached.add(token)
            self.owners |= dict.fromkeys(expected or [], token)

    @rule(token=tokens, cores=st.dictionaries(st.integers(-1, 8), core_reports, max_size=3))
    def report(self, token: str, cores: dict[int, CoreReport]) -> None:
        before = self.state()
        kind = self.expected_refusal(token, cores)
        try:
            self.ledger.report(token, report_of(cores))
        except ledger.Refusal as refused:
            assert type(refused) is kind, refused
            assert self.state() == before
        else:
            assert kind is None
            self.bytes |= {(token, local): core.memory.total_bytes or 0 for local, core in cores.items()}

    @rule(token=consumes(tokens))
    def leave(self, token: str) -> None:
        self.ledger.leave(token)
        self.attached.discard(token)
        self.owners = {core: owner for core, owner in self.owners.items() if owner != token}
        self.bytes = {key: size for key, size in self.bytes.items() if key[0] != token}

    @invariant()
    def owners_are_those_of_the_list(self) -> None:
        assert {core: holding.token for core, holding in self.held().items()} == self.owners

    @invariant()
    def no_counter_of_a_core_falls_or_outgrows_its_field(self) -> None:
        for core in range(self.shape.core_count):
            holding = self.ledger.owner(core)
            counted = self.ledger.counters_of(core, holding) if holding else self.ledger.counters[core]
            now = (counted.busy_seconds_total, counted.flop_total, counted.executions_total)
            assert all(later >= earlier for later, earlier in zip(now, self.highest[core], strict=True))
            assert max(now[1:]) < 2**64
            self.highest[core] = now

    @invariant()
    def no_stack_holds_more_than_it_can(self) -> None:
        used = [0] * (self.shape.core_count // self.shape.cores_per_stack)
        for core, holding in self.held().items():
            used[self.shape.stack_of(core)] += holding.memory_of(core).total_bytes or 0
        assert max(used) <= self.shape.stack_bytes
        assert sum(used) == sum(self.bytes.values())

    def held(self) -> dict[int, Holding]:
        owned = {core: self.ledger.owner(core) for core in range(self.shape.core_count)}
        return {core: holding for core, holding in owned.items() if holding is not None}

    def state(self) -> object:
        holdings = [
            (holding.token, holding.lnc, holding.first, holding.count, holding.report, dict(holding.cores))
            for holding in self.ledger.holdings
        ]
        owners = {core: holding.token for core, holding in self.held().items()}
        counters = [(core.busy_seconds_total, core.flop_total, core.executions_total) for core in self.ledger.counters]
        return holdings, owners, counters

    def expected_cores(self, token: str, request: CoreRequest) -> tuple[list[int] | None, type[ledger.Refusal] | None]:
        """The physical cores that the request gets, or the kind of its refusal."""
        if token in self.attached:
            return None, ledger.AlreadyAttached
        lnc = self.shape.default_lnc if request.logical_neuroncore_config is None else request.logical_neuroncore_config
        if lnc not in self.shape.supported_lncs:
            return None, ledger.ImpossibleRequest
        total = self.shape.core_count // lnc
        if request.first is None and request.count is not None:
            starts, count = list(range(total - request.count + 1)), request.count
        else:
            starts = [request.first or 0]
            count = total if request.count is None else request.count
        if count < 1 or not starts or starts[0] < 0 or starts[0] + count > total:
            return None, ledger.ImpossibleRequest
        for start in starts:
            wanted = list(range(start * lnc, (start + count) * lnc))
            if not self.owners.keys() & set(wanted):
                return wanted, None
        return None, ledger.CoresUnavailable

    def expected_refusal(self, token: str, cores: dict[int, CoreReport]) -> type[ledger.Refusal] | None:
        if token not in self.attached:
            return ledger.InvalidReport
        holding = self.ledger.known(token)
        for local, now in cores.items():
            before = holding.cores.get(local, CoreReport())
            falls = (
                now.busy_seconds_total < before.busy_seconds_total
                or now.flop_total < before.flop_total
                or now.executions_total < before.executions_total
            )
            if not 0 <= local < holding.count or falls:
                return ledger.InvalidReport
        sizes = self.bytes | {(token, local): core.memory.total_bytes or 0 for local, core in cores.items()}
        used: dict[int, int] = {}
        for (owner, local), size in sizes.items():
            of = self.ledger.known(owner)
            stack = self.shape.stack_of((of.first + local) * of.lnc)
            used[stack] = used.get(stack, 0) + size
        return ledger.OutOfDeviceMemory if max(used.values(), default=0) > self.shape.stack_bytes else None


LedgerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestLedger = LedgerMachine.TestCase


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
