from __future__ import annotations

import pytest
from neurond.ownership.holding import CoreReport, Report
from neurond.ownership.ledger import Ledger
from neurond.sources.simulated import SimulatedSource, shape_of

from neurontools import catalog, model
from neurontools.model import DeviceMemory, SourceKind
from neurontools.nrt.core_request import CoreRequest

EVERY = [(name, lnc) for name in catalog.names() for lnc in catalog.load(name).family.lnc_supported]


def host(instance_type: str, lnc: int | None = None) -> tuple[Ledger, SimulatedSource]:
    kind = catalog.load(instance_type)
    ledger = Ledger(shape_of(kind, lnc))
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
        assert (device.bdf, device.cpu_affinity, device.numa_node) == (
            facts.bdf.value,
            facts.cpu_affinity.value,
            facts.numa_node.value,
        )
        assert device.connected_to == kind.topology.connected_to[device.index]
        assert device.memory_bytes == sum(stack.capacity_bytes for stack in device.hbm_stacks)
        for field, fact in (("bdf", facts.bdf), ("cpu_affinity", facts.cpu_affinity), ("numa_node", facts.numa_node)):
            assert (field in device.inferred_fields) == (fact.value is not None and not fact.certain)
    for index, core in enumerate(reading.cores):
        assert core.index == index
        assert core.index == core.device_index * kind.family.physical_cores_per_device + core.index_on_device
        assert core.hbm_stack_index < kind.family.hbm_stack_count
        assert (core.owner_pid, core.utilization_ratio, core.busy_seconds_total) == (None, 0.0, 0.0)


def test_an_lnc_that_the_hardware_cannot_have() -> None:
    with pytest.raises(ValueError, match="configuration 2 is not possible"):
        shape_of(catalog.load("trn1.2xlarge"), 2)


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
    ledger.report("a", Report(1.0, {0: CoreReport(memory=DeviceMemory(tensors_bytes=5))}))
    now = source.read()
    assert [index for index in range(16) if now.devices[index] is not before.devices[index]] == [1]


def test_memory_goes_with_its_owner_and_counters_stay() -> None:
    ledger, source = host("trn1.2xlarge")
    ledger.enter("a", 7, 0, 1.0)
    ledger.attach("a", CoreRequest(0, 1))
    ledger.report("a", Report(1.0, {0: CoreReport(2.5, 10, 3, DeviceMemory(tensors_bytes=5), 8.0, 7.0)}))
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


def test_an_owner_between_two_reads_is_in_the_counters() -> None:
    ledger, source = host("trn1.2xlarge")
    source.read()
    for token in "ab":
        ledger.enter(token, 7, 0, 1.0)
        ledger.attach(token, CoreRequest(0, 1))
        ledger.report(token, Report(1.0, {0: CoreReport(2.5, 10, 3)}))
        ledger.leave(token)
    core = source.read().cores[0]
    assert (core.owner_pid, core.executions_total, core.flop_total) == (None, 6, 20)


def test_an_owner_that_has_not_reported() -> None:
    ledger, source = host("trn2.3xlarge")
    ledger.enter("a", 7, 0, 1.0)
    ledger.attach("a", CoreRequest(count=1))
    core = source.read().cores[1]
    assert (core.owner_pid, core.measured_at_seconds, core.utilization_ratio) == (7, None, None)


def test_ecc_counters_are_those_that_are_given() -> None:
    kind = catalog.load("trn1.32xlarge")
    counters = [model.EccCounters(0, 0, 0, 0, 0)] * 16
    source = SimulatedSource(kind, Ledger(shape_of(kind)), lambda index: counters[index])
    before = source.read().devices
    counters[3] = model.EccCounters(1, 0, 0, 0, 0)
    now = source.read().devices
    assert now[3].ecc.mem_corrected_total == 1
    assert [index for index in range(16) if now[index] is not before[index]] == [3]


@pytest.mark.parametrize(
    ("name", "links", "inferred"),
    [
        ("trn2u.48xlarge", "ring", ("links",)),
        ("trn3s.48xlarge", "switched", ()),
        ("trn3e.24xlarge", "switched", ("links", "name", "node_count")),
    ],
)
def test_a_node_of_an_ultraserver_says_what_is_only_concluded(name: str, links: str, inferred: tuple[str, ...]) -> None:
    kind = catalog.load(name)
    source = SimulatedSource(kind, Ledger(shape_of(kind)), place=("us-1", 1))
    node = source.instance.ultraserver_node
    assert kind.ultraserver is not None
    assert node is not None
    assert source.instance.ultraserver_id == "us-1"
    assert (node.index, node.node_count, node.links) == (1, kind.ultraserver.node_count, links)
    assert node.inferred_fields == inferred
