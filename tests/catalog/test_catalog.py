"""What the catalog answers, by literal values, and that its data is consistent as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from pydantic import TypeAdapter

from neurontools import catalog
from neurontools.catalog import DeviceFamily, Fact, InstanceType, PciIds, PeakTflops, Status, SysfsStrings
from neurontools.catalog.topology import TopologyKind

GIB = 2**30
NAMES = catalog.names()
FAMILIES = catalog.family_names()


def test_all_instance_types_in_order() -> None:
    assert NAMES == (
        "inf1.xlarge",
        "inf1.2xlarge",
        "inf1.6xlarge",
        "inf1.24xlarge",
        "inf2.xlarge",
        "inf2.8xlarge",
        "inf2.24xlarge",
        "inf2.48xlarge",
        "trn1.2xlarge",
        "trn1.32xlarge",
        "trn1n.32xlarge",
        "trn2.3xlarge",
        "trn2.48xlarge",
        "trn2u.48xlarge",
        "trn2n.48xlarge",
        "trn3pd98.3xlarge",
        "trn3s.48xlarge",
        "trn3e.24xlarge",
    )
    assert FAMILIES == ("inferentia", "inferentia2", "trainium", "trainium2", "trainium3")


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_type_is_of_the_declared_types(name: str) -> None:
    """Pydantic reads back what it wrote, strictly: every value has the type that its field declares."""
    adapter = TypeAdapter(InstanceType)
    instance_type = catalog.load(name)
    assert adapter.validate_json(adapter.dump_json(instance_type), strict=True) == instance_type


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_type_is_consistent(name: str) -> None:
    instance_type = catalog.load(name)
    family = instance_type.family
    assert instance_type.name == name
    assert [device.index for device in instance_type.devices] == list(range(instance_type.device_count))
    assert instance_type.topology.device_count == instance_type.device_count
    assert instance_type.topology.is_symmetric
    known_bdfs = [device.bdf.value for device in instance_type.devices if device.bdf.value is not None]
    assert len(set(known_bdfs)) == len(known_bdfs)
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bdf) for bdf in known_bdfs)
    for device in instance_type.devices:
        assert re.fullmatch(r"-1|\d", device.numa_node.value or "0")
        assert re.fullmatch(r"\d+-\d+(,\d+-\d+)*", device.cpu_affinity.value or "0-0")
    cores = list(range(family.physical_cores_per_device))
    assert [sorted(row) for row in instance_type.physical_core_map] == [cores] * instance_type.device_count
    ids = instance_type.device_index_by_routing_id
    assert sorted(ids) == (list(range(instance_type.device_count)) if ids else [])
    for lnc in family.lnc_supported:
        assert instance_type.logical_core_count(lnc) * lnc == instance_type.physical_core_count


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_consistent(name: str) -> None:
    family = catalog.load_family(name)
    assert family.hbm_stack_bytes * family.hbm_stack_count == family.device_memory_bytes.value
    assert family.cores_per_hbm_stack * family.hbm_stack_count == family.physical_cores_per_device
    assert all(re.fullmatch("[0-9a-f]{4}", pci_id) for pci_id in (family.pci.vendor_id, *family.pci.device_ids))
    for dtype, _ in family.peak_per_physical_core.dense:
        per_device = family.peak_flops_per_device(dtype)
        per_core = family.peak_flops_per_physical_core(dtype)
        assert per_core is not None
        assert per_device is None or per_core * family.physical_cores_per_device <= per_device * 1.01


def facts_with_sources(value: object) -> Iterator[tuple[str, ...]]:
    """The sources of everything that has some, at any depth."""
    if isinstance(value, Fact | PciIds | SysfsStrings | PeakTflops):
        yield value.source
    if is_dataclass(value):
        for field in fields(value):
            yield from facts_with_sources(getattr(value, field.name))
    elif isinstance(value, tuple):
        for element in value:
            yield from facts_with_sources(element)


def test_every_source_is_explained_and_every_explanation_is_needed() -> None:
    used = {source for name in NAMES for ids in facts_with_sources(catalog.load(name)) for source in ids}
    # The tables of core maps and routing ids are values without a Fact; their sources stay in topologies.toml.
    in_topologies = {"driver-v3-core-map", "driver-v2-routing", "driver-v3-routing"}
    assert used | in_topologies == set(catalog.sources())
    assert all(catalog.sources().values())


def test_trn1_32xlarge() -> None:
    trn1 = catalog.load("trn1.32xlarge")
    assert (trn1.device_count, trn1.physical_core_count, trn1.logical_core_count()) == (16, 32, 32)
    assert trn1.topology.kind is TopologyKind.TORUS_2D
    assert trn1.topology_standing.status is Status.DRIVER
    assert trn1.vcpu_count == Fact(128, Status.DOCUMENTED, ("docs-arch-trn1",))
    assert trn1.host_memory_bytes.value == 512 * GIB
    assert trn1.device_memory_bytes_total == 512 * GIB
    assert trn1.numa_node_count.value == 2
    assert trn1.neuronlink_bytes_per_second_per_device.value == 384 * GIB
    assert trn1.efa_bits_per_second.value == 800_000_000_000
    assert trn1.on_demand_usd_per_hour == Fact(21.5, Status.OBSERVED, ("karpenter-prices",))
    assert trn1.sagemaker_usd_per_hour.value == 24.725
    assert trn1.local_storage.value == "4 x 2 TB NVMe"
    assert trn1.physical_core_map == ((0, 1),) * 16
    assert trn1.device_index_by_routing_id[:5] == (0, 4, 1, 5, 3)
    device = trn1.devices[12]
    assert (device.bdf.value, device.cpu_affinity.value, device.numa_node.value) == ("0000:10:1e.0", "0-31,64-95", "0")
    assert device.bdf.source == ("docs-performance-tips", "docs-nrt-developer-guide")


def test_trn2_48xlarge() -> None:
    trn2 = catalog.load("trn2.48xlarge")
    assert (trn2.physical_core_count, trn2.logical_core_count(), trn2.logical_core_count(1)) == (128, 64, 128)
    assert (trn2.logical_cores_per_device(), trn2.logical_cores_per_device(1)) == (4, 8)
    assert trn2.physical_core_map[0] == (4, 5, 6, 7, 2, 3, 0, 1)
    assert trn2.physical_core_map[15] == (6, 7, 4, 5, 0, 1, 2, 3)
    assert trn2.on_demand_usd_per_hour.value is None
    assert trn2.capacity_block_usd_per_hour.value == 35.76
    assert trn2.devices[13].bdf == Fact(
        "0000:e1:00.0",
        Status.DOCUMENTED,
        ("docs-neuron-ls", "capture-trn2.48xlarge-device13"),
        "also observed",
    )


def test_the_family_of_trainium2() -> None:
    family = catalog.load_family("trainium2")
    assert family is catalog.load("trn2.3xlarge").family
    assert (family.pci.vendor_id, family.pci.device_ids) == ("1d0f", ("7364",))
    assert (family.sysfs.arch_type_device, family.device_version.value) == ("NDv3", "v4")
    assert [family.neuroncore_version(lnc).value for lnc in (None, 1, 2)] == ["v3d", "v3", "v3d"]
    assert (family.hbm_stack_bytes, family.cores_per_hbm_stack) == (24 * GIB, 2)
    assert family.memory_bandwidth_bytes_per_second.value == 2_900_000_000_000
    assert family.peak_flops_per_device("bf16") == 667e12
    assert family.peak_flops_per_device("bf16", sparse=True) == 2563e12
    assert family.peak_flops_per_device("int8") is None
    assert family.peak_flops_per_physical_core("bf16") == 79e12
    assert family.peak_flops_per_physical_core("cfp8", sparse=True) == 316e12
    assert family.engine_clock_hz("tensor") == 2.4e9
    assert family.engine_clock_hz("warp") is None
    assert family.sbuf_bytes_per_partition == 224 * 1024


def test_inferentia_has_what_is_known_and_no_more() -> None:
    family = catalog.load_family("inferentia")
    assert (family.hbm_kind, family.hbm_stack_bytes, family.cores_per_hbm_stack) == ("DRAM", 4 * GIB, 2)
    assert family.sbuf_bytes_per_partition is None
    assert family.engine_clock_hz("tensor") is None
    assert family.device_version == Fact("v1", Status.INFERRED)


def test_addresses_in_an_assumed_order_are_inferred() -> None:
    device = catalog.load("inf1.24xlarge").devices[15]
    assert (device.bdf.value, device.bdf.status, device.bdf.certain) == ("0000:00:1f.0", Status.INFERRED, False)
    assert device.cpu_affinity == Fact(None, Status.UNKNOWN)


def test_devices_without_a_row_are_unknown() -> None:
    devices = catalog.load("trn2u.48xlarge").devices
    assert len(devices) == 16
    assert all(device.bdf.value is None and device.bdf.status is Status.UNKNOWN for device in devices)


def test_a_single_device_has_the_core_map_of_the_first() -> None:
    assert catalog.load("trn2.3xlarge").physical_core_map == ((4, 5, 6, 7, 2, 3, 0, 1),)


def test_ultraservers() -> None:
    pod = catalog.load("trn2u.48xlarge").ultraserver
    assert pod is not None
    assert (pod.kind, pod.node_count, pod.device_count) == ("pod", 4, 64)
    assert (pod.node_links.value, pod.node_link_bytes_per_second_per_device.value) == ("ring", 256e9)
    assert catalog.load("trn2.48xlarge").ultraserver is None
    assert "trn3.48xlarge" in catalog.load("trn3s.48xlarge").other_names


@pytest.mark.parametrize(
    ("status", "value", "certain"),
    [
        (Status.DOCUMENTED, 1, True),
        (Status.DRIVER, 1, True),
        (Status.OBSERVED, 1, True),
        (Status.INFERRED, 1, False),
        (Status.UNKNOWN, None, False),
        (Status.NOT_APPLICABLE, None, False),
    ],
)
def test_certain(status: Status, value: int | None, certain: bool) -> None:
    assert Fact(value, status).certain is certain


def test_impossible_lnc() -> None:
    with pytest.raises(ValueError, match="configuration 2 is not possible on trainium: use 1"):
        catalog.load("trn1.32xlarge").logical_core_count(2)
    with pytest.raises(ValueError, match="on trainium2: use 1 or 2"):
        catalog.load_family("trainium2").neuroncore_version(4)


def test_unknown_instance_type_suggests_and_says_how_to_list() -> None:
    with pytest.raises(catalog.UnknownInstanceType) as caught:
        catalog.load("TRN2.48xlarg")
    text = str(caught.value)
    assert text.startswith('no instance type "TRN2.48xlarg" is known; did you mean trn2.48xlarge or ')
    assert text.endswith("(list them with: neurond --list-instance-types)")
    with pytest.raises(catalog.UnknownInstanceType, match=r'"p5\\x1b" is known \(list them'):
        catalog.load("p5\x1b")


def test_unknown_family() -> None:
    with pytest.raises(ValueError, match='no device family "gpu" is known: there are inferentia, inferentia2'):
        catalog.load_family("gpu")


def test_loading_reads_only_the_needed_files_and_no_pydantic() -> None:
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from neurontools import catalog
catalog.names()
catalog.load("trn1.32xlarge")
catalog.load("trn1.2xlarge")
print(*(path.rsplit("/", 1)[1] for path in opened if path.endswith(".toml")), "pydantic" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(run.stdout.split()) == ["False", "index.toml", "topologies.toml", "trainium.toml"]


def test_a_loaded_instance_type_is_shared_and_can_be_a_key() -> None:
    assert catalog.load("inf2.xlarge") is catalog.load("inf2.xlarge")
    assert {catalog.load("inf2.xlarge"): 1}
    family: DeviceFamily = catalog.load("inf2.xlarge").family
    assert hash(family) == hash(catalog.load_family("inferentia2"))
