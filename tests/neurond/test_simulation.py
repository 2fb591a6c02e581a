"""Simulated devices, and the synthetic load on them."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from neurond.allocator import CoreAllocator, CoreReport, RuntimeReport
from neurond.snapshots.sampler import Sampler
from neurond.sources.simulated import SCENARIOS, STEP_SECONDS, USERS, SimulatedSource, simulated_shape

from neurontools import catalog
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import DeviceMemory, SourceKind
from tests.harness.pictures import is_as_stored, rounded
from tests.harness.scenario_host import STARTED_AT_SECONDS, STARTED_AT_UNIX_SECONDS, ScenarioHost

GOLDEN = Path(__file__).parent / "golden/scenarios.txt"
EVERY = [(name, lnc) for name in catalog.names() for lnc in catalog.load(name).family.lnc_supported]


def host(instance_type: str, lnc: int | None = None) -> tuple[CoreAllocator, SimulatedSource]:
    kind = catalog.load(instance_type)
    ledger = CoreAllocator(simulated_shape(kind, lnc))
    return ledger, SimulatedSource(kind, ledger)


@pytest.mark.parametrize(("name", "lnc"), EVERY)
def test_the_devices_are_the_facts_of_the_catalog(name: str, lnc: int) -> None:
    kind = catalog.load(name)
    ledger, source = host(name, lnc)
    reading = source.read()
    assert source.kind is SourceKind.SIMULATED
    assert source.instance.instance_type == name
    assert source.instance.logical_neuroncore_config == lnc
    assert reading.warnings == ()
    assert len(reading.devices) == kind.device_count
    assert len(reading.cores) == ledger.shape.core_count == kind.device_count * kind.family.physical_cores_per_device
    for device, facts in zip(reading.devices, kind.devices, strict=True):
        for field in ("bdf", "cpu_affinity", "numa_node"):
            fact = getattr(facts, field)
            assert getattr(device, field) == fact.value
            assert (field in device.inferred_fields) == (fact.value is not None and not fact.certain)
        assert device.connected_to == kind.topology.connected_to[device.index]
        assert device.memory_bytes == sum(stack.capacity_bytes for stack in device.hbm_stacks)
    for index, core in enumerate(reading.cores):
        assert index == core.index == core.device_index * kind.family.physical_cores_per_device + core.index_on_device
        assert core.hbm_stack_index < kind.family.hbm_stack_count
        assert (core.owner_pid, core.utilization_ratio, core.busy_seconds_total) == (None, 0.0, 0.0)


def test_what_did_not_change_is_the_same_object() -> None:
    ledger, source = host("trn1.32xlarge")
    before = source.read()
    again = source.read()
    assert again.cores is before.cores
    assert again.devices is before.devices
    ledger.enter("a", 7, 0, 1.0)
    ledger.attach("a", CoreRequest(2, 1))
    now = source.read()
    assert [index for index in range(32) if now.cores[index] is not before.cores[index]] == [2]
    assert now.devices is before.devices, "nothing is allocated yet"
    ledger.report("a", RuntimeReport(1.0, {0: CoreReport(memory=DeviceMemory(tensors_bytes=5))}))
    now = source.read()
    assert [index for index in range(16) if now.devices[index] is not before.devices[index]] == [1]


def test_memory_goes_with_its_owner_and_counters_stay() -> None:
    ledger, source = host("trn1.2xlarge")
    ledger.enter("a", 7, 0, 1.0)
    ledger.attach("a", CoreRequest(0, 1))
    core = source.read().cores[0]
    assert (core.owner_pid, core.measured_at_seconds, core.utilization_ratio) == (7, None, None)
    ledger.report("a", RuntimeReport(1.0, {0: CoreReport(2.5, 10, 3, DeviceMemory(tensors_bytes=5), 8.0, 7.0)}))
    held = source.read()
    assert held.cores[0].owner_pid == 7
    assert held.cores[0].memory.tensors_bytes == 5
    assert held.cores[0].execution_started_at_unix_seconds == 8.0
    assert held.cores[0].utilization_ratio is None, "that is for the daemon to derive"
    assert held.devices[0].hbm_stacks[0].used_bytes == 5
    ledger.leave("a")
    free = source.read()
    assert free.cores[0].owner_pid is None
    assert free.cores[0].memory == DeviceMemory()
    assert free.cores[0].execution_started_at_unix_seconds is None
    assert (free.cores[0].busy_seconds_total, free.cores[0].flop_total, free.cores[0].executions_total) == (2.5, 10, 3)
    assert free.cores[0].last_execution_at_unix_seconds == 7.0
    assert free.devices[0].hbm_stacks[0].used_bytes == 0


def test_a_node_of_an_ultraserver_says_what_is_only_concluded() -> None:
    for name, links, inferred in (
        ("trn2u.48xlarge", "ring", ("links",)),
        ("trn3s.48xlarge", "switched", ()),
        ("trn3e.24xlarge", "switched", ("links", "name", "node_count")),
    ):
        kind = catalog.load(name)
        instance = SimulatedSource(kind, CoreAllocator(simulated_shape(kind)), place=("us-1", 1)).instance
        node = instance.ultraserver_node
        assert kind.ultraserver is not None
        assert node is not None
        assert (instance.ultraserver_id, node.index, node.node_count) == ("us-1", 1, kind.ultraserver.node_count)
        assert (node.links, node.inferred_fields) == (links, inferred)


LARGEST_PID = 2**22
BUSY = [name for name, scenario in SCENARIOS.items() if scenario.step]


class Loaded(ScenarioHost):
    """A host with a load, whose clock the test moves."""

    def __init__(self, scenario: str, instance_type: str = "trn2.3xlarge", **options: Any) -> None:
        super().__init__(instance_type, scenario, **options)
        self.kind = catalog.load(instance_type)
        self.now_seconds = STARTED_AT_SECONDS

    def advance(self, seconds: float) -> None:
        self.now_seconds += seconds
        self.load.advance(self.now_seconds)

    def state(self) -> object:
        reports = [(holding.pid, holding.report) for holding in self.allocator.leases]
        return reports, [self.load.ecc(index) for index in range(self.kind.device_count)]

    def reports(self) -> list[RuntimeReport]:
        reports = [holding.report for holding in self.allocator.leases]
        return [report for report in reports if report is not None]

    def cores(self) -> list[CoreReport]:
        return [report.cores[0] for report in self.reports()]


def known(value: Any, name: str = "") -> Any:
    """A document without what is unknown, empty or zero. Times count from the start; large numbers have six digits."""
    if isinstance(value, dict):
        shown = {name: known(each, name) for name, each in value.items()}
        return {name: each for name, each in shown.items() if each not in (None, 0, "", [], {})}
    if isinstance(value, list | tuple):
        return [known(each) for each in value]
    if name.endswith("_unix_seconds") and value:
        return value - STARTED_AT_UNIX_SECONDS
    return float(f"{value:.6g}") if isinstance(value, int | float) and value > 10**8 else value


def test_scenarios_at_some_moments_are_as_stored() -> None:
    lines = []
    for name, scenario in SCENARIOS.items():
        host = ScenarioHost("trn1.2xlarge", name, seed=1)
        lines.append(f"{name}: {scenario.summary}")
        for seconds in (2, 7, 13, 14, 31, 32, 89, 90):
            now = host.at(float(seconds))
            first, second = now.cores
            shown: list[Any] = [asdict(first), second.busy_seconds_total, asdict(now.devices[0].ecc)]
            shown.append([stack.used_bytes for stack in now.devices[0].hbm_stacks])
            for process in map(asdict, now.processes[:1]):
                names = ("user", "host_memory", "errors", "models", "total_latency", "executions_per_second")
                shown.append({name: process[name] for name in names})
            texts = [each.reason for each in now.health.findings] if now.health else []
            if seconds % 2 == 0:
                lines.append(rounded(known([f"{seconds} s", *shown, texts])))
    assert is_as_stored("\n".join(lines) + "\n", GOLDEN), "scenarios.txt differs; UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_seed_gives_the_same_load_however_often_it_is_read(scenario: str) -> None:
    one, same, other, seldom = (Loaded(scenario, seed=seed) for seed in (5, 5, 6, 5))
    for _ in range(130):
        for loaded in (one, same, other):
            loaded.advance(STEP_SECONDS)
        assert one.state() == same.state()
    assert (one.state() != other.state()) == (scenario != "idle")
    seldom.advance(130 * STEP_SECONDS)
    assert seldom.state() == one.state()
    users = [holding.user for holding in one.allocator.leases]
    assert users == [USERS[5 % len(USERS)]] * len(users)
    assert all(user.startswith("synth-") for user in USERS), "that nobody has"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "instance_type"),
    [*((scenario, "trn2.3xlarge") for scenario in SCENARIOS), *(("training-ramp", name) for name in catalog.names())],
)
def test_every_scenario_runs_and_on_every_instance_type(scenario: str, instance_type: str) -> None:
    loaded = Loaded(scenario, instance_type)
    sampler = Sampler(loaded.source, loaded.allocator, loaded.load, 1.0)
    loaded.advance(31)
    snapshot = sampler.sample(whole=False)  # which doesn't move the load on, to the sampler's own clock
    count = loaded.allocator.shape.logical_core_count(loaded.allocator.shape.default_lnc)
    assert snapshot.synthetic_load == scenario
    assert len(snapshot.processes) == (count if scenario in BUSY else 0)
    for process in snapshot.processes:
        assert process.synthetic
        assert process.pid > LARGEST_PID
        assert process.command.startswith(f"[synthetic load {scenario}] rank ")
        assert process.tag.startswith("synthetic-")
        assert process.runtime_version == "synthetic"
        assert (process.user, process.uid) == (USERS[0], None)


@pytest.mark.slow
@pytest.mark.parametrize("instance_type", ["inf1.xlarge", "inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"])
def test_no_load_takes_more_memory_than_there_is(instance_type: str) -> None:
    for scenario, lnc in product(BUSY, catalog.load(instance_type).family.lnc_supported):
        loaded = Loaded(scenario, instance_type, lnc=lnc)
        for _ in range(45):
            loaded.advance(2)
            assert {report.measured_at_seconds for report in loaded.reports()} == {loaded.now_seconds}, "none refused"
            for device in loaded.source.read().devices:
                for stack in device.hbm_stacks:
                    assert stack.used_bytes is not None
                    assert stack.used_bytes <= stack.capacity_bytes


@pytest.mark.parametrize("scenario", ["ecc-burst", "memory-leak", "stuck-core"])
def test_long_intervals_have_long_steps_and_the_same_totals(scenario: str) -> None:
    hosts = [Loaded(scenario, "trn1.2xlarge", interval_seconds=seconds) for seconds in (1.0, 40.0)]
    for host in hosts:
        host.advance(400)
    often, rarely = hosts
    assert often.load.ecc(0) == rarely.load.ecc(0)
    for fine, coarse in zip(often.cores(), rarely.cores(), strict=True):
        assert coarse.busy_seconds_total == pytest.approx(fine.busy_seconds_total, abs=12)  # a step and chance
        assert coarse.executions_total == pytest.approx(fine.executions_total, rel=0.04, abs=220)
        assert coarse.execution_started_at_unix_seconds == fine.execution_started_at_unix_seconds
    for before, after in zip(often.reports(), rarely.reports(), strict=True):
        assert after.measured_at_seconds == before.measured_at_seconds, "a report is no older than the tick"
        assert after.errors is not None
        assert before.errors is not None
        assert after.errors.runtime_total == pytest.approx(before.errors.runtime_total, abs=10)
        assert after.total_latency_histogram is not None
        assert sum(after.total_latency_histogram.bucket_counts) == after.cores[0].executions_total


def test_a_load_stays_within_its_cores_and_their_peak() -> None:
    loaded = Loaded("steady", "trn1.32xlarge", neuroncores=5)
    assert [loaded.allocator.owner(index) is not None for index in range(32)] == [True] * 5 + [False] * 27
    assert len(list(Loaded("steady", "trn1.2xlarge", neuroncores=1000).allocator.leases)) == 2
    loaded.advance(100)
    peak = loaded.kind.family.peak_flops_per_physical_core("bf16")
    assert peak
    for core in loaded.cores():
        assert 0 < core.flop_total / 100 < peak
        assert 0.8 < core.busy_seconds_total / 100 < 1
    assert all(report.executions.completed_total == report.cores[0].executions_total for report in loaded.reports())


def test_a_real_process_may_take_the_memory_that_a_load_wants() -> None:
    """They share an HBM stack; whoever comes second is refused, and the daemon goes on."""
    loaded = Loaded("memory-leak", lnc=1, neuroncores=1)
    loaded.advance(1)
    loaded.allocator.enter("real", 77, 0, 1.0)
    loaded.allocator.attach("real", CoreRequest(1, 1))
    used = loaded.cores()[0].memory.total_bytes or 0
    free = loaded.allocator.shape.stack_bytes - used
    report = RuntimeReport(1.0, {0: CoreReport(memory=DeviceMemory(tensors_bytes=free))})
    loaded.allocator.report("real", report)
    loaded.advance(10)
    assert loaded.cores()[0].memory.total_bytes == used
    loaded.allocator.report("real", replace(report, cores={0: CoreReport()}))
    loaded.advance(10)
    assert (loaded.cores()[0].memory.total_bytes or 0) > used
