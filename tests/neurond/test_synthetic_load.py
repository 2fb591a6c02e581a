from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from neurond.load import SCENARIOS, SyntheticLoad
from neurond.load.scenarios import STEP_SECONDS
from neurond.load.synthetic_load import USERS
from neurond.ownership.holding import CoreReport, Report
from neurond.ownership.ledger import Ledger
from neurond.snapshots.sampler import Sampler
from neurond.sources.simulated import SimulatedSource, shape_of
from neurond.verdicts.thresholds import Thresholds

from neurontools import catalog, model
from neurontools.model import DeviceMemory
from neurontools.nrt.core_request import CoreRequest

LARGEST_PID = 2**22
BUSY = [name for name, scenario in SCENARIOS.items() if scenario.step]


class Loaded:
    """A host with a load, whose clock the test moves."""

    def __init__(self, scenario: str, instance_type: str = "trn2.3xlarge", lnc: int | None = None, **options: Any):
        self.kind = catalog.load(instance_type)
        self.ledger = Ledger(shape_of(self.kind, lnc))
        peak = self.kind.family.peak_flops_per_physical_core("bf16") or 0.0
        self.load = SyntheticLoad(self.ledger, scenario, peak_flops_per_core=peak, started_at_seconds=0.0, **options)
        # One moment, so that two loads can be compared.
        self.load._started_at_unix_seconds = 1e9
        self.source = SimulatedSource(self.kind, self.ledger, self.load.ecc)
        self.now_seconds = 0.0

    def advance(self, seconds: float) -> None:
        self.now_seconds += seconds
        self.load.advance(self.now_seconds)

    def state(self) -> object:
        reports = [(holding.pid, holding.report) for holding in self.ledger.holdings]
        return reports, [self.load.ecc(index) for index in range(self.kind.device_count)]

    def reports(self) -> list[Report]:
        reports = [holding.report for holding in self.ledger.holdings]
        return [report for report in reports if report is not None]

    def cores(self) -> list[CoreReport]:
        return [report.cores[0] for report in self.reports()]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_seed_gives_the_same_load(scenario: str) -> None:
    one, same, other = (Loaded(scenario, seed=seed) for seed in (5, 5, 6))
    for _ in range(130):
        for loaded in (one, same, other):
            loaded.advance(STEP_SECONDS)
        assert one.state() == same.state()
    assert (one.state() != other.state()) == (scenario != "idle")


def test_the_seed_tells_whose_processes_these_are() -> None:
    """One user's, as the ranks of a job are; a name that says that nobody has it."""

    def users(seed: int) -> set[str | None]:
        load = Loaded("steady", seed=seed)
        return {load.load.facts(holding).user for holding in load.ledger.holdings}

    assert [users(seed) for seed in range(len(USERS))] == [{user} for user in USERS]
    assert users(len(USERS)) == users(0)
    assert all(user.startswith("synth-") for user in USERS)


@pytest.mark.parametrize("scenario", BUSY)
def test_a_load_does_not_depend_on_how_often_it_is_read(scenario: str) -> None:
    often, seldom = Loaded(scenario), Loaded(scenario)
    for _ in range(300):
        often.advance(0.0625)
    seldom.advance(300 * 0.0625)
    assert often.state() == seldom.state()


@pytest.mark.parametrize("instance_type", catalog.names())
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_on_every_instance_type(scenario: str, instance_type: str) -> None:
    loaded = Loaded(scenario, instance_type)
    sampler = Sampler(loaded.source, loaded.ledger, loaded.load, 1.0)
    loaded.advance(31)
    snapshot = sampler.sample(whole=False)  # which doesn't move the load on, to the sampler's own clock
    count = loaded.ledger.shape.logical_core_count(loaded.ledger.shape.default_lnc)
    assert snapshot.synthetic_load == scenario
    assert len(snapshot.processes) == (count if scenario in BUSY else 0)
    for process in snapshot.processes:
        assert process.synthetic
        assert process.pid > LARGEST_PID
        assert process.command.startswith(f"[synthetic load {scenario}] rank ")
        assert process.tag.startswith("synthetic-")
        assert process.runtime_version == "synthetic"
        assert (process.user, process.uid) == (USERS[0], None)


@pytest.mark.parametrize("instance_type", ["inf1.xlarge", "inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"])
@pytest.mark.parametrize("scenario", BUSY)
def test_no_load_takes_more_memory_than_there_is(scenario: str, instance_type: str) -> None:
    for lnc in catalog.load(instance_type).family.lnc_supported:
        loaded = Loaded(scenario, instance_type, lnc)
        for _ in range(90):
            loaded.advance(1)
            assert all(report.measured_at_seconds == loaded.now_seconds for report in loaded.reports()), "none refused"
            for device in loaded.source.read().devices:
                for stack in device.hbm_stacks:
                    assert stack.used_bytes is not None
                    assert stack.used_bytes <= stack.capacity_bytes


def test_a_leak_fills_the_memory_and_then_allocations_fail() -> None:
    loaded = Loaded("memory-leak")
    sizes = []
    for _ in range(80):
        loaded.advance(1)
        sizes.append(loaded.cores()[0].memory.total_bytes or 0)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[30] < sizes[-1]
    share = Thresholds().memory_used_ratio
    assert share is not None
    assert sizes[-1] > share * loaded.ledger.shape.stack_bytes, "the verdict that is named after it is reached"
    failures = [report.errors.runtime_total for report in loaded.reports()]
    assert min(failures) > 10
    fresh = Loaded("memory-leak")
    fresh.advance(30)
    assert {report.errors.runtime_total for report in fresh.reports()} == {0}


def test_a_stuck_core_has_an_execution_in_flight_and_finishes_none() -> None:
    loaded = Loaded("stuck-core")
    loaded.advance(9)
    assert all(core.execution_started_at_unix_seconds is None for core in loaded.cores())
    loaded.advance(2)
    stuck, *others = loaded.cores()
    assert stuck.execution_started_at_unix_seconds == 1e9 + 10
    assert all(core.execution_started_at_unix_seconds is None for core in others)
    loaded.advance(20)
    later, *waiting = loaded.cores()
    assert later.executions_total == stuck.executions_total
    assert later.execution_started_at_unix_seconds == stuck.execution_started_at_unix_seconds
    assert later.busy_seconds_total == pytest.approx(stuck.busy_seconds_total + 20)
    assert waiting == others, "the other ranks wait for it"


def test_ecc_bursts_only_ever_add() -> None:
    loaded = Loaded("ecc-burst", "trn1.32xlarge")
    before = [model.EccCounters(0, 0, 0, 0, 0)] * 16
    grew = 0
    for _ in range(400):
        loaded.advance(STEP_SECONDS)
        now = [loaded.load.ecc(index) for index in range(16)]
        for earlier, later in zip(before, now, strict=True):
            for name in earlier.__slots__:
                assert getattr(later, name) >= getattr(earlier, name)
        grew += now != before
        before = now
    assert grew > 20
    assert sum(ecc.mem_corrected_total or 0 for ecc in before) > 100
    quiet = Loaded("steady", "trn1.32xlarge")
    quiet.advance(60)
    assert {quiet.load.ecc(index) for index in range(16)} == {model.EccCounters(0, 0, 0, 0, 0)}


def test_a_ramp_loads_compiles_and_gets_faster() -> None:
    loaded = Loaded("training-ramp")
    busy: list[float] = []
    for _ in range(70):
        loaded.advance(1)
        busy.append(loaded.cores()[0].busy_seconds_total)
    rates = [later - earlier for earlier, later in itertools.pairwise(busy)]
    assert set(rates[:13]) == {0.0}
    assert 0 < rates[20] < rates[40] < rates[65] <= 1


def test_a_load_on_some_cores_leaves_the_others_free() -> None:
    loaded = Loaded("steady", "trn1.32xlarge", neuroncores=5)
    loaded.advance(1)
    assert [loaded.ledger.owner(index) is not None for index in range(32)] == [True] * 5 + [False] * 27
    assert len(list(Loaded("steady", "trn1.2xlarge", neuroncores=1000).ledger.holdings)) == 2


def test_a_load_stays_within_the_peak_of_its_cores() -> None:
    loaded = Loaded("steady", "trn1.32xlarge")
    loaded.advance(100)
    peak = loaded.kind.family.peak_flops_per_physical_core("bf16")
    assert peak
    for core in loaded.cores():
        assert 0 < core.flop_total / loaded.now_seconds < peak
        assert 0.8 < core.busy_seconds_total / loaded.now_seconds < 1
    assert all(report.executions.completed_total == report.cores[0].executions_total for report in loaded.reports())


def test_a_real_process_may_take_the_memory_that_a_load_wants() -> None:
    """They share an HBM stack; whoever comes second is refused, and the daemon goes on."""
    loaded = Loaded("memory-leak", lnc=1, neuroncores=1)
    loaded.advance(1)
    loaded.ledger.enter("real", 77, 0, 1.0)
    loaded.ledger.attach("real", CoreRequest(1, 1))
    used = loaded.cores()[0].memory.total_bytes or 0
    free = loaded.ledger.shape.stack_bytes - used
    report = Report(1.0, {0: CoreReport(memory=DeviceMemory(tensors_bytes=free))})
    loaded.ledger.report("real", report)
    loaded.advance(10)
    assert loaded.cores()[0].memory.total_bytes == used
    loaded.ledger.report("real", replace(report, cores={0: CoreReport()}))
    loaded.advance(10)
    assert (loaded.cores()[0].memory.total_bytes or 0) > used
