"""Who gets which NeuronCores, what they count there, and the HBM that they share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from neurond.allocator import (
    AlreadyAttached,
    CoreAllocator,
    CoreCounters,
    CoreLease,
    CoreReport,
    CoresInUse,
    DeviceMemoryExhausted,
    HostShape,
    ImpossibleRequest,
    InvalidReport,
    Refusal,
    RuntimeReport,
    UnknownToken,
)

from neurontools import model
from neurontools.driver.neuron_runtime import CoreRequest
from tests.harness.allocator_parts import LARGEST, TRN1, TRN2, allocator_of, entered, report_of, tensors
from tests.harness.examples import examples

ALL = CoreRequest()
ONE = CoreRequest(count=1)
APART = (CoreRequest(1, 1), CoreRequest(3, 1))
EIGHT = HostShape(8, 1, 1, 100, 1, (1,))
OLD, NEW = "NeuronCore(s) not available - Requested:", "Logical Neuron Core(s) not available - Requested:"
BUSY = "Logical Core size:2 (cores busy, ret=-16)"
HARDWARE = " is not possible on this hardware"
FOUR = ": this host has NeuronCores 0-3; ask for those"


@pytest.mark.parametrize(
    ("shape", "requests", "cores"),
    [
        pytest.param(TRN1, [ALL], [range(4)], id="all"),
        pytest.param(TRN1, [CoreRequest(count=4)], [range(4)], id="as many as there are"),
        pytest.param(TRN1, [CoreRequest(3, 1)], [range(3, 4)], id="the last"),
        pytest.param(
            HostShape(4, 2, 2, 100, 1, (1,)),
            [CoreRequest(1, 1), CoreRequest(4, 1), CoreRequest(count=2), ONE, CoreRequest(count=3)],
            [range(1, 2), range(4, 5), range(2, 4), range(1), range(5, 8)],
            id="the first run that fits",
        ),
        # Core 7 is free when the last comes, but its partner isn't: the next pair begins at 8.
        pytest.param(
            TRN2,
            [CoreRequest(count=2), CoreRequest(count=3, logical_neuroncore_config=1), ONE],
            [range(4), range(4, 7), range(8, 10)],
            id="two LNCs",
        ),
    ],
)
def test_the_cores_that_a_process_gets(shape: HostShape, requests: list[CoreRequest], cores: list[range]) -> None:
    holdings = list(allocator_of(shape, *requests).leases)
    assert [holding.physical_cores() for holding in holdings] == cores
    for holding in holdings:
        assert len(holding.logical_cores) * holding.lnc == len(holding.physical_cores())


@pytest.mark.parametrize(
    ("shape", "held", "request_", "text"),
    [
        # The words of the runtime, which users and scripts know: runtime.md, section 5.
        (TRN1, [ALL], CoreRequest(1, 1), f"{OLD}nc1-nc1 Available:0; held by PID 11"),
        (TRN1, [ALL], ONE, f"{OLD}1 Available:0; held by PID 11"),
        (TRN2, [ALL], CoreRequest(0, 1), f"{NEW}lnc0-lnc0 Available:0 {BUSY}; held by PID 11"),
        (TRN2, [CoreRequest(0, 7, 1)], CoreRequest(3, 1), f"{NEW}lnc3-lnc3 Available:0 {BUSY}; held by PID 11"),
        (TRN1, [CoreRequest(1, 1)], ALL, f"{OLD}nc0-nc3 Available:3; held by PID 11"),
        (TRN1, APART, CoreRequest(count=2), f"{OLD}2 Available:2 (free ones are not contiguous); held by PID 11, 12"),
        (TRN1, [ONE] * 4, ONE, f"{OLD}1 Available:0; held by PID 11, 12, 13, 14"),
        (EIGHT, [ONE] * 5, ALL, f"{OLD}nc0-nc7 Available:3; held by PID 11, 12, 13, 14 and 1 more"),
    ],
)
def test_who_asks_for_cores_of_others_is_told_who_holds_them(
    shape: HostShape, held: list[CoreRequest], request_: CoreRequest, text: str
) -> None:
    host = allocator_of(shape, *held)
    with pytest.raises(CoresInUse) as refused:
        host.attach(entered(host, "refused"), request_)
    assert str(refused.value) == f"{text}; end them or ask for other cores"


@pytest.mark.parametrize(
    ("shape", "request_", "text"),
    [
        (TRN1, CoreRequest(4, 1), f"NEURON_RT_VISIBLE_CORES=4-4{FOUR}"),
        (TRN1, CoreRequest(3, 2), f"NEURON_RT_VISIBLE_CORES=3-4{FOUR}"),
        (TRN1, CoreRequest(-1, 3), f"NEURON_RT_VISIBLE_CORES=-1-1{FOUR}"),
        (TRN1, CoreRequest(0, 0), f"NEURON_RT_VISIBLE_CORES=0--1{FOUR}"),
        (TRN1, CoreRequest(2**32 - 1, 2**32 - 1), f"NEURON_RT_VISIBLE_CORES=4294967295-8589934589{FOUR}"),
        (TRN1, CoreRequest(count=5), "NEURON_RT_NUM_CORES=5: this host has 4 NeuronCores; ask for 1 to 4"),
        (TRN1, CoreRequest(count=0), "NEURON_RT_NUM_CORES=0: this host has 4 NeuronCores; ask for 1 to 4"),
        (TRN1, CoreRequest(None, None, 2), f"NEURON_LOGICAL_NC_CONFIG=2{HARDWARE}; set it to 1, or unset it"),
        (TRN2, CoreRequest(None, None, 3), f"NEURON_LOGICAL_NC_CONFIG=3{HARDWARE}; set it to 1 or 2, or unset it"),
    ],
)
def test_what_the_host_can_never_have(shape: HostShape, request_: CoreRequest, text: str) -> None:
    host = allocator_of(shape, CoreRequest(0, 1))
    with pytest.raises(ImpossibleRequest) as refused:
        host.attach(entered(host, "refused"), request_)
    assert str(refused.value) == text


def test_a_process_attaches_once_and_observers_of_it_are_no_reason_against() -> None:
    host = CoreAllocator(TRN1)
    host.enter("watching", 7, 0, 1.0)
    host.attach(entered(host, "a", 7), CoreRequest(0, 1))
    with pytest.raises(AlreadyAttached, match="PID 7 already holds cores"):
        host.attach("a", CoreRequest(1, 1))
    with pytest.raises(AlreadyAttached):
        host.enter("a", 8, 0, 1.0)
    assert host.attach(entered(host, "b", 8), CoreRequest(1, 1)).count == 1


def test_an_unknown_token_and_one_of_an_observer() -> None:
    host = CoreAllocator(TRN1)
    for call in (lambda: host.attach("?", ALL), lambda: host.report("?", report_of({})), lambda: host.find_lease("?")):
        with pytest.raises(UnknownToken, match="connect to the attach socket"):
            call()
    with pytest.raises(InvalidReport, match="holds no cores; call Attach before Report"):
        host.report(entered(host, "a"), report_of({}))


def test_what_a_process_brings_and_asks_for_is_kept() -> None:
    host = CoreAllocator(TRN2)
    watching = host.enter("a", 71, 1000, 5.0)
    assert (watching.pid, watching.uid, watching.attached_at_unix_seconds, watching.lnc) == (71, 1000, 5.0, 2)
    assert (watching.tag, watching.runtime_version, watching.synthetic, watching.count) == ("71", None, False, 0)
    assert [host.owner(core) for core in range(16)] == [None] * 16
    holding = host.attach("a", CoreRequest(1, 1), "job", "2.34")
    assert (holding.tag, holding.runtime_version, holding.devices(TRN2)) == ("job", "2.34", (0,))
    assert [core for core in range(16) if host.owner(core) is holding] == [2, 3]
    assert list(host.leases) == [holding]
    untold = host.attach(entered(host, "b", 72), ONE)
    assert (untold.tag, untold.runtime_version) == ("72", "")
    assert host.enter("c", 73, 0, 6.0, synthetic=True).synthetic
    assert next(iter(allocator_of(TRN1, ALL).leases)).devices(TRN1) == (0, 1)


def test_a_core_beyond_those_of_the_process_is_refused_and_nothing_is_kept() -> None:
    host = allocator_of(TRN1, CoreRequest(0, 2))
    holding = host.find_lease("a")
    for index in (-1, 2):
        with pytest.raises(InvalidReport, match=f"core {index} is not one of the 2 cores of this process"):
            host.report("a", report_of({0: tensors(1), index: tensors(1)}))
    assert (holding.report, holding.cores) == (None, {})
    accepted = report_of({1: tensors(1)})
    host.report("a", accepted)
    assert holding.report is accepted


def test_counters_of_physical_cores_run_on_from_owner_to_owner_wherever_they_are() -> None:
    host = CoreAllocator(TRN2)
    for round_, token in enumerate("ab", 1):
        holding = host.attach(entered(host, token), CoreRequest(3, 2))
        first = CoreReport(1.5, 7, 3, last_execution_at_unix_seconds=10.0 * round_)
        host.report(token, report_of({0: first, 1: CoreReport(3.0, 8, 4)}))
        counted = [host.counters_of(index, holding) for index in range(6, 10)]
        assert counted == [
            *(CoreCounters(1.5 * round_, flop * round_, 3 * round_, 10.0 * round_) for flop in (4, 3)),  # of 7
            *[CoreCounters(3.0 * round_, 4 * round_, 4 * round_)] * 2,
        ]
        host.leave(token)
        assert host.counters == [CoreCounters()] * 6 + counted + [CoreCounters()] * 6


def test_counters_of_a_core_stay_within_their_fields() -> None:
    """However much its owners report, one after the other: what doesn't fit 64 bits can't be sent to anybody."""
    host = CoreAllocator(TRN1)
    for token in "abcd":
        holding = host.attach(entered(host, token), CoreRequest(0, 1))
        host.report(token, report_of({0: CoreReport(1e12, LARGEST, LARGEST)}))
        counted = host.counters_of(0, holding)
        assert (counted.flop_total, counted.executions_total) == (LARGEST, LARGEST)
        host.leave(token)


def test_a_core_without_executions_keeps_when_its_owners_before_last_executed() -> None:
    host = allocator_of(TRN1, CoreRequest(0, 1))
    host.report("a", report_of({0: CoreReport(last_execution_at_unix_seconds=7.0)}))
    host.leave("a")
    holding = host.attach(entered(host, "b"), CoreRequest(0, 1))
    assert host.counters_of(0, holding) == host.counters[0], "nothing is reported yet"
    host.report("b", report_of({0: CoreReport()}))
    assert host.counters_of(0, holding).last_execution_at_unix_seconds == 7.0


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({"cores": {2: CoreReport(5)}}, {"cores": {2: CoreReport(4)}}, "busy_seconds_total of core 2 fell from 5 to 4"),
        ({"cores": {2: CoreReport(0, 5)}}, {"cores": {2: CoreReport(0, 4)}}, "flop_total of core 2 fell from 5 to 4"),
        ({"cores": {1: CoreReport(0, 0, 5)}}, {"cores": {1: CoreReport(0, 0, 4)}}, "executions_total of core 1 fell"),
        ({"executions": model.ExecutionCounters(3)}, {}, "executions.completed_total fell from 3 to 0"),
        ({"errors": model.ErrorCounters(hardware_total=1)}, {}, "errors.hardware_total fell from 1 to 0"),
        (
            {"training": model.TrainingCounters(steps_total=3)},
            {"training": model.TrainingCounters(steps_total=2)},
            "training.steps_total fell from 3 to 2",
        ),
        ({}, {"measured_at_seconds": 1.5}, "measured_at_seconds is earlier"),
        ({"counted_since_seconds": 0.5}, {"counted_since_seconds": 0.75}, "counted_since_seconds differs"),
    ],
)
def test_a_report_that_contradicts_the_one_before_is_refused(
    before: dict[str, Any], now: dict[str, Any], text: str
) -> None:
    usual: dict[str, Any] = {"measured_at_seconds": 2.0, "cores": {}}
    host = allocator_of(TRN1, ALL)
    for _ in range(2):
        host.report("a", RuntimeReport(**usual | before))
    with pytest.raises(InvalidReport, match=text):
        host.report("a", RuntimeReport(**usual | now))


def test_what_a_process_counted_before_the_ledger_is_no_count_of_the_core() -> None:
    host = CoreAllocator(TRN2, began_seconds=100.0)
    host.attach(entered(host, "old"), CoreRequest(1, 1, 2))
    for executions, flop in ((500, 7001), (510, 7012)):
        core = CoreReport(50.0 + executions, flop, executions)
        host.report("old", RuntimeReport(200.0, {0: core}, counted_since_seconds=99.0))
    first, second = (host.counters_of(index, host.find_lease("old")) for index in (2, 3))
    assert (first.busy_seconds_total, first.executions_total) == (10.0, 10)
    assert (first.flop_total, second.flop_total) == (6, 5)
    host.leave("old")
    assert host.counters[2].executions_total == 10, "they stay the core's"
    host.attach(entered(host, "as old as the ledger"), CoreRequest(4, 1))
    host.report("as old as the ledger", RuntimeReport(200.0, {0: CoreReport(1.0, 7, 3)}, counted_since_seconds=100.0))
    assert host.counters_of(8, host.find_lease("as old as the ledger")).executions_total == 3


def test_a_stack_is_shared_by_all_who_allocate_from_it_wherever_it_is() -> None:
    """Two HBM stacks of four cores each, and processes with LNC 2: those on logical cores 2 and 3 share the second."""
    host = allocator_of(HostShape(1, 8, 2, 1000, 2, (1, 2)), CoreRequest(1, 2), CoreRequest(3, 1))
    both, last = host.leases
    assert (host.holders_of_stack(0), host.holders_of_stack(1)) == ([both], [both, last])
    host.report("a", report_of({0: tensors(1000), 1: tensors(600)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1000, 600]
    with pytest.raises(DeviceMemoryExhausted):
        host.report("b", report_of({0: tensors(401)}))
    host.report("b", report_of({0: tensors(400)}))
    for local, size_bytes in ((1, 601), (0, 1001)):
        with pytest.raises(DeviceMemoryExhausted):
            host.report("a", report_of({local: tensors(size_bytes)}))
    host.report("a", report_of({0: tensors(1)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1, 600]


def test_cores_that_a_report_leaves_out_keep_what_they_had_and_count_on_their_stack() -> None:
    host = allocator_of(HostShape(1, 4, 1, 1000, 1, (1,)), ALL)
    host.report("a", report_of({0: tensors(600), 1: tensors(300)}))
    with pytest.raises(DeviceMemoryExhausted):
        host.report("a", report_of({2: tensors(101)}))
    host.report("a", report_of({2: tensors(100)}))
    host.report("a", report_of({1: tensors(7)}))
    assert [host.find_lease("a").memory_of(index).tensors_bytes for index in range(4)] == [600, 7, 100, None]
    assert host.find_lease("a").peak_device_memory_bytes == 1000


def test_memory_that_is_not_told_takes_no_room() -> None:
    host = allocator_of(TRN1, CoreRequest(0, 1), CoreRequest(1, 1))
    host.report("a", report_of({0: CoreReport(memory=model.DeviceMemory(*[None] * 11))}))
    assert host.stack_bytes_of(host.find_lease("a"), 0) == 0
    host.report("b", report_of({0: tensors(TRN1.stack_bytes)}))


def test_out_of_memory_tells_who_holds_the_stack() -> None:
    host = allocator_of(TRN2, CoreRequest(0, 1, 1), CoreRequest(1, 1, 1))
    host.report("a", report_of({0: tensors(600)}))
    host.report("b", report_of({0: tensors(400)}))
    with pytest.raises(DeviceMemoryExhausted) as refused:
        host.report("b", report_of({0: tensors(401)}))
    headline, titles, *rows = str(refused.value).splitlines()
    assert headline.startswith("out of device memory: PID 12 asks for 401 B on device 0 HBM 0, which has 1000 B")
    assert "of which 400 B are free" in headline
    assert titles.split() == ["PID", "NEURONCORES", "BYTES", "SIZE"]
    assert [row.split()[:3] for row in rows] == [["11", "0-0", "600"], ["12", "1-1", "400"], ["12", "asks", "for"]]
    assert host.find_lease("b").memory_of(1).tensors_bytes == 400, "what was accepted stays"


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
        self.ledger = CoreAllocator(TRN2)
        self.owners: dict[int, str] = {}  # by physical core
        self.attached: set[str] = set()
        self.number = 0
        self.highest = [(0.0, 0, 0)] * TRN2.core_count

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
        try:
            cores = self.ledger.attach(token, request).physical_cores()
        except Refusal:
            assert self.state() == before
        else:
            assert token not in self.attached
            assert not self.owners.keys() & set(cores)
            self.attached.add(token)
            self.owners |= dict.fromkeys(cores, token)

    @rule(token=tokens, cores=st.dictionaries(st.integers(-1, 8), core_reports, max_size=3))
    def report(self, token: str, cores: dict[int, CoreReport]) -> None:
        before = self.state()
        try:
            self.ledger.report(token, report_of(cores))
        except Refusal:
            assert self.state() == before
        else:
            assert token in self.attached
            assert all(self.ledger.find_lease(token).cores[local] is core for local, core in cores.items())

    @rule(token=consumes(tokens))
    def leave(self, token: str) -> None:
        self.ledger.leave(token)
        self.attached.discard(token)
        self.owners = {core: owner for core, owner in self.owners.items() if owner != token}

    @invariant()
    def owners_are_those_of_the_list(self) -> None:
        assert {core: holding.token for core, holding in self.held().items()} == self.owners

    @invariant()
    def no_counter_of_a_core_falls_or_outgrows_its_field(self) -> None:
        for core in range(TRN2.core_count):
            holding = self.ledger.owner(core)
            counted = self.ledger.counters_of(core, holding) if holding else self.ledger.counters[core]
            now = (counted.busy_seconds_total, counted.flop_total, counted.executions_total)
            assert all(later >= earlier for later, earlier in zip(now, self.highest[core], strict=True))
            assert max(now[1:]) < 2**64
            self.highest[core] = now

    @invariant()
    def no_stack_holds_more_than_it_can(self) -> None:
        used = [0] * (TRN2.core_count // TRN2.cores_per_stack)
        for core, holding in self.held().items():
            used[TRN2.stack_of(core)] += holding.memory_of(core).total_bytes or 0
        assert max(used) <= TRN2.stack_bytes

    def held(self) -> dict[int, CoreLease]:
        owned = {core: self.ledger.owner(core) for core in range(TRN2.core_count)}
        return {core: holding for core, holding in owned.items() if holding is not None}

    def state(self) -> object:
        holdings = [
            (holding.token, holding.lnc, holding.first, holding.count, holding.report, dict(holding.cores))
            for holding in self.ledger.leases
        ]
        owners = {core: holding.token for core, holding in self.held().items()}
        counters = [(core.busy_seconds_total, core.flop_total, core.executions_total) for core in self.ledger.counters]
        return holdings, owners, counters


LedgerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestLedger = LedgerMachine.TestCase
