"""A ledger does what a list of who owns what does, in any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from neurond.ownership import ledger
from neurond.ownership.holding import CoreReport, Holding
from neurond.ownership.ledger import Ledger

from neurontools import model
from neurontools.nrt.core_request import CoreRequest
from tests.harness.examples import examples
from tests.harness.ledger_parts import LARGEST, TRN2, report_of

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
