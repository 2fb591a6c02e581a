"""What the catalog answers, that its data is consistent, and that wrong data is refused with its file and key."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from neurontools import catalog
from neurontools.catalog import (
    Fact,
    FactStatus,
    InstanceType,
    PciIds,
    PeakTflops,
    SysfsStrings,
    reader,
)
from neurontools.catalog.facts import check_ultraserver_place, is_server_id, simulated_server_id
from neurontools.catalog.topology import TopologyKind

GIB = 2**30
NAMES = catalog.names()
FAMILIES = catalog.family_names()


def test_all_instance_types_in_order() -> None:
    expected = {
        "inf1": ("xlarge", "2xlarge", "6xlarge", "24xlarge"),
        "inf2": ("xlarge", "8xlarge", "24xlarge", "48xlarge"),
        "trn1": ("2xlarge", "32xlarge"),
        "trn1n": ("32xlarge",),
        "trn2": ("3xlarge", "48xlarge"),
        "trn2u": ("48xlarge",),
        "trn2n": ("48xlarge",),
        "trn3pd98": ("3xlarge",),
        "trn3s": ("48xlarge",),
        "trn3e": ("24xlarge",),
    }
    assert tuple(f"{family}.{size}" for family, sizes in expected.items() for size in sizes) == NAMES
    assert FAMILIES == ("inferentia", "inferentia2", "trainium", "trainium2", "trainium3")


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_type_is_consistent(name: str) -> None:
    adapter = TypeAdapter(InstanceType)
    instance_type = catalog.load(name)
    # Pydantic reads back what it wrote, strictly: every value has the type that its field declares.
    assert adapter.validate_json(adapter.dump_json(instance_type), strict=True) == instance_type
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
    assert trn1.topology_evidence.status is FactStatus.DRIVER
    assert trn1.vcpu_count == Fact(128, FactStatus.DOCUMENTED, ("docs-arch-trn1",))
    assert trn1.host_memory_bytes.value == 512 * GIB
    assert trn1.device_memory_bytes_total == 512 * GIB
    assert trn1.numa_node_count.value == 2
    assert trn1.neuronlink_bytes_per_second_per_device.value == 384 * GIB
    assert trn1.efa_bits_per_second.value == 800_000_000_000
    assert trn1.on_demand_usd_per_hour == Fact(21.5, FactStatus.OBSERVED, ("karpenter-prices",))
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
    assert catalog.load("trn2.3xlarge").physical_core_map == trn2.physical_core_map[:1]
    assert trn2.on_demand_usd_per_hour.value is None
    assert trn2.capacity_block_usd_per_hour.value == 35.76
    sources = ("docs-neuron-ls", "capture-trn2.48xlarge-device13")
    assert trn2.devices[13].bdf == Fact("0000:e1:00.0", FactStatus.DOCUMENTED, sources, "also observed")


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


def test_what_is_assumed_or_unknown_says_so() -> None:
    for status in FactStatus:
        value = None if status in (FactStatus.UNKNOWN, FactStatus.NOT_APPLICABLE) else 1
        assert Fact(value, status).certain is (
            status in (FactStatus.DOCUMENTED, FactStatus.DRIVER, FactStatus.OBSERVED)
        )
    device = catalog.load("inf1.24xlarge").devices[15]
    assert (device.bdf.value, device.bdf.status, device.bdf.certain) == ("0000:00:1f.0", FactStatus.INFERRED, False)
    assert device.cpu_affinity == Fact(None, FactStatus.UNKNOWN)
    without_rows = catalog.load("trn2u.48xlarge").devices
    assert [device.bdf for device in without_rows] == [Fact(None, FactStatus.UNKNOWN)] * 16
    family = catalog.load_family("inferentia")
    assert (family.hbm_kind, family.hbm_stack_bytes, family.cores_per_hbm_stack) == ("DRAM", 4 * GIB, 2)
    assert family.sbuf_bytes_per_partition is family.engine_clock_hz("tensor") is None
    assert family.device_version == Fact("v1", FactStatus.INFERRED)


def test_ultraservers() -> None:
    assert catalog.load("inf2.xlarge") is catalog.load("inf2.xlarge"), "a loaded type is shared, and can be a key"
    assert hash(catalog.load("inf2.xlarge").family) == hash(catalog.load_family("inferentia2"))
    pod = catalog.load("trn2u.48xlarge").ultraserver
    assert pod is not None
    assert (pod.kind, pod.node_count, pod.device_count) == ("pod", 4, 64)
    assert (pod.node_links.value, pod.node_link_bytes_per_second_per_device.value) == ("ring", 256e9)
    assert catalog.load("trn2.48xlarge").ultraserver is None
    assert "trn3.48xlarge" in catalog.load("trn3s.48xlarge").other_names


def test_what_is_not_in_the_catalog_is_told_with_what_is() -> None:
    with pytest.raises(ValueError, match="configuration 2 is not possible on trainium: use 1"):
        catalog.load("trn1.32xlarge").logical_core_count(2)
    with pytest.raises(ValueError, match="on trainium2: use 1 or 2"):
        catalog.load_family("trainium2").neuroncore_version(4)
    with pytest.raises(catalog.UnknownInstanceType) as caught:
        catalog.load("TRN2.48xlarg")
    text = str(caught.value)
    assert text.startswith('no instance type "TRN2.48xlarg" is known; did you mean trn2.48xlarge or ')
    assert text.endswith("(list them with: neurond --list-instance-types)")
    with pytest.raises(catalog.UnknownInstanceType, match=r'"p5\\x1b" is known \(list them'):
        catalog.load("p5\x1b")
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


def test_a_place_is_a_name_and_an_index() -> None:
    trn2u = catalog.load("trn2u.48xlarge")
    assert check_ultraserver_place("rack-7.b_2:3", trn2u) == ("rack-7.b_2", 3)
    assert check_ultraserver_place("a:35", catalog.load("trn3e.24xlarge")) == ("a", 35)
    for text, kind, cause in (
        ("us-1:0", catalog.load("trn2.48xlarge"), "trn2.48xlarge is in no UltraServer"),
        ("us-1:4", trn2u, "there is no node 4: a Trn2 UltraServer has 4; give 0 to 3"),
        ("us-1:36", catalog.load("trn3e.24xlarge"), "there is no node 36: a Trn3 Gen2 UltraServer has 36; give 0 to"),
        *(
            (text, trn2u, "write NAME:INDEX")
            for text in ("", ":", ":0", "us-1", "us-1:", "us-1:-1", "us-1:x", "us-1:٣")
        ),
        *((text, trn2u, "write NAME:INDEX") for text in ("a b:0", "é:0", "a" * 65 + ":0")),
    ):
        with pytest.raises(ValueError, match=cause) as told:
            check_ultraserver_place(text, kind)
        assert "\n" not in str(told.value)


def test_an_invented_id_is_written_as_the_driver_does_and_cannot_pass_for_real() -> None:
    made = simulated_server_id("us-1")
    assert is_server_id(made)
    assert made.startswith("ffffffff")
    assert simulated_server_id("us-2") != made
    assert simulated_server_id("00000000000000a7") == "00000000000000a7"
    assert not is_server_id("0" * 16)
    assert not is_server_id("busy")


DATA = Path(reader.__file__).parent / "data"


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """A copy of the module that reads the catalog, beside a copy of the data that a test may change."""
    shutil.copytree(DATA, tmp_path / "data")
    file = shutil.copy(DATA.with_name("reader.py"), tmp_path)
    spec = spec_from_file_location("copied_reader", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


TABLE = """
[instance_types."inf2.4xlarge"]
device_count = 1
topology = "single"
vcpu_count = {value = 16, status = "inferred", source = []}
host_memory_bytes = {status = "unknown", source = []}
numa_node_count = {status = "unknown", source = []}
neuronlink_bytes_per_second_per_device = {status = "n/a", source = []}
efa_bits_per_second = {status = "unknown", source = []}
on_demand_usd_per_hour = {value = 1, status = "inferred", source = []}
devices = [
  {index = 0, bdf = "0000:00:1f.0", status = "inferred", source = []},
]
"""


def test_a_new_instance_type_is_data_only(copy: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    change(data / "index.toml", '"inf2.xlarge"', '"inf2.4xlarge" = "inferentia2"\n"inf2.xlarge"')
    assert "inf2.4xlarge" in copy.names()
    with pytest.raises(copy.CatalogDataError, match=r"inferentia2.toml: instance_types.inf2.4xlarge: is missing"):
        copy.load("inf2.4xlarge")
    with (data / "inferentia2.toml").open("a") as file:
        file.write(TABLE)
    copy.load_tables.cache_clear()
    added = copy.load("inf2.4xlarge")
    assert added.on_demand_usd_per_hour.value == 1.0
    assert added.devices[0].bdf.value == "0000:00:1f.0"
    assert added.devices[0].numa_node.value is None
    (data / "other.toml").write_text("[a]\nb = 1\n")
    assert copy.load_tables("other.toml") == {"a": {"b": 1}}, "a file that was not compiled"


TRN1_DEVICE = (
    '  {index = 0, bdf = "0000:00:1e.0", cpu_affinity = "0-7", numa_node = "-1",'
    ' status = "observed", source = ["capture-trn1.2xlarge"]},\n'
)
TRN1 = '[instance_types."trn1.2xlarge"]\n'
ONE = f"{TRN1}device_count = 1\n"
VCPUS = '{value = 8, status = "documented"'
TYPE = "instance_types.trn1.2xlarge"
STATUS = f"{TYPE}.vcpu_count.status:"


WRONG = [
    (TRN1, TRN1 + 'colour = "red"\n', f"{TYPE}.colour: is not a key of this table"),
    ("[family]", "[family", ""),
    (ONE, TRN1, f"{TYPE}.device_count: is missing"),
    (ONE, ONE.replace("1\n", "true\n"), f"{TYPE}.device_count: True is not of type int"),
    (ONE, ONE.replace("1\n", "2\n"), f"{TYPE}.topology: single links 1 devices, but device_count is 2"),
    (TRN1_DEVICE, "", f"{TYPE}.devices: has 0 rows for a device_count of 1"),
    (VCPUS, VCPUS.replace("documented", "rumoured"), f"{STATUS} 'rumoured' is none of documented, driver,"),
    (VCPUS, VCPUS.replace("documented", "unknown"), f"{STATUS} 'unknown' does not go with a value"),
    (VCPUS, '{status = "documented"', f"{STATUS} 'documented' does not go with no value"),
    (VCPUS + ", source = [", VCPUS + ", source = [1, ", f"{TYPE}.vcpu_count.source: 1 is not of type str"),
    ("{index = 0, bdf", "{index = 3, bdf", f"{TYPE}.devices[0].index: 3 is out of order"),
    ('"single"', '"star"', f"{TYPE}.topology: topologies.toml has no topologies.star"),
    ('"single"', '"single"\ncore_map = "trn2"', f"{TYPE}.core_map: trn2 does not order 2 cores for each of 1 devices"),
    ("[family]\n", "[family]\nage = 4\n", "family.age: is not a key of this table"),
    ("lnc_default = 1", "lnc_default = 2", "family.lnc_default: 2 is none of"),
    ('name = "trainium"', 'name = "x"', "family.name: must be 'trainium'"),
    ("fp32 = 47.5", 'fp32 = "fast"', "family.peak_tflops_per_device.dense.fp32: 'fast' is not of type float"),
    ('{value = 34_359_738_368, status = "observed"', '{status = "unknown"', "family.device_memory_bytes: must have a"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        *(("trainium", *wrong) for wrong in WRONG),
        ("topologies", "[[]]", "[[7]]", "topologies.single.connected_to: device 0 can't be connected to 7: there are"),
        ("topologies", '= "single"', '= "knot"', "topologies.single.kind: 'knot' is none of single, line, ring, torus"),
        ("index", '= "trainium"', "= 4", "instance_types.trn1.2xlarge: 4 is not of type str"),
    ],
)
def test_wrong_data_is_refused(copy: Any, tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    change(tmp_path / "data" / f"{file}.toml", old, new)
    with pytest.raises(copy.CatalogDataError) as caught:
        copy.load("trn1.2xlarge")
    assert str(caught.value).startswith(f"{file}.toml: {message}")


def test_every_table_is_in_the_index() -> None:
    in_files = {
        name for family in reader.family_names() for name in reader.load_tables(f"{family}.toml")["instance_types"]
    }
    assert in_files == set(reader.names())
    groups = {"index.toml", "sources.toml", "topologies.toml"} | {f"{name}.toml" for name in reader.family_names()}
    assert {path.name for path in DATA.iterdir()} == groups


@pytest.mark.parametrize("file", sorted(DATA.glob("*.toml")), ids=lambda file: file.stem)
def test_the_compiled_tables_are_those_of_the_data(file: Path) -> None:
    """When this fails, data was changed: run scripts/compile-catalog."""
    module = import_module(f"neurontools.catalog.compiled.{file.stem}")
    content = file.read_bytes()
    assert zlib.crc32(content) == module.CRC32
    assert tomllib.loads(content.decode()) == module.TABLES
