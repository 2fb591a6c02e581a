"""Data files are read strictly: what is wrong is refused, and the text names the file and the key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.catalog import CatalogDataError, loader, reader

DATA = Path(reader.__file__).parent / "data"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the catalog's data that a test may change, read instead of the real one."""
    copy = tmp_path / "data"
    shutil.copytree(DATA, copy)
    monkeypatch.setattr(reader, "_DATA_DIRECTORY", copy)
    caches = (reader.parsed, loader.load, loader.load_family, loader._family_by_instance_type)
    for cached in caches:
        cached.cache_clear()
    yield copy
    for cached in caches:
        cached.cache_clear()


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_new_instance_type_is_data_only(data: Path) -> None:
    change(data / "index.toml", '"inf2.xlarge"', '"inf2.4xlarge" = "inferentia2"\n"inf2.xlarge"')
    with (data / "inferentia2.toml").open("a") as file:
        file.write("""
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
""")
    assert "inf2.4xlarge" in loader.names()
    added = loader.load("inf2.4xlarge")
    assert added.on_demand_usd_per_hour.value == 1.0
    assert added.devices[0].bdf.value == "0000:00:1f.0"
    assert added.devices[0].numa_node.value is None


TRN1_DEVICE = (
    '  {index = 0, bdf = "0000:00:1e.0", cpu_affinity = "0-7", numa_node = "-1",'
    ' status = "observed", source = ["capture-trn1.2xlarge"]},\n'
)
TRN1 = '[instance_types."trn1.2xlarge"]\ndevice_count = 1\n'


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "trainium.toml",
            TRN1,
            TRN1 + 'colour = "red"\n',
            "trainium.toml: instance_types.trn1.2xlarge.colour: is not a key of this table",
        ),
        (
            "trainium.toml",
            TRN1,
            '[instance_types."trn1.2xlarge"]\n',
            "trainium.toml: instance_types.trn1.2xlarge.device_count: is missing",
        ),
        (
            "trainium.toml",
            TRN1,
            '[instance_types."trn1.2xlarge"]\ndevice_count = true\n',
            "trainium.toml: instance_types.trn1.2xlarge.device_count: True is not of type int",
        ),
        (
            "trainium.toml",
            TRN1,
            '[instance_types."trn1.2xlarge"]\ndevice_count = 2\n',
            "trainium.toml: instance_types.trn1.2xlarge.topology: single links 1 devices, but device_count is 2",
        ),
        (
            "trainium.toml",
            TRN1_DEVICE,
            "",
            "trainium.toml: instance_types.trn1.2xlarge.devices: has 0 rows for a device_count of 1",
        ),
        (
            "topologies.toml",
            "connected_to = [[]]",
            "connected_to = [[7]]",
            "topologies.toml: topologies.single.connected_to: device 0 can't be connected to 7: there are 1 devices",
        ),
        ("trainium.toml", "[family]", "[family", "trainium.toml: "),
        (
            "trainium.toml",
            '"trn1.2xlarge"]\n',
            '"trn1.2xlarge"]\nother_names = "x"\n',
            "trainium.toml: instance_types.",
        ),
        (
            "trainium.toml",
            '{value = 8, status = "documented"',
            '{value = 8, status = "rumoured"',
            "trainium.toml: instance_types.trn1.2xlarge.vcpu_count.status: 'rumoured' is none of documented, driver,",
        ),
        (
            "trainium.toml",
            '{value = 8, status = "documented"',
            '{value = 8, status = "unknown"',
            "trainium.toml: instance_types.trn1.2xlarge.vcpu_count.status: 'unknown' does not go with a value",
        ),
        (
            "trainium.toml",
            '{value = 8, status = "documented"',
            '{status = "documented"',
            "trainium.toml: instance_types.trn1.2xlarge.vcpu_count.status: 'documented' does not go with no value",
        ),
        (
            "trainium.toml",
            '{value = 8, status = "documented", source = [',
            '{value = 8, status = "documented", source = [1, ',
            "trainium.toml: instance_types.trn1.2xlarge.vcpu_count.source: 1 is not of type str",
        ),
        (
            "trainium.toml",
            "{index = 0, bdf",
            "{index = 3, bdf",
            "trainium.toml: instance_types.trn1.2xlarge.devices[0].index: 3 is out of order",
        ),
        (
            "trainium.toml",
            "{index = 0, bdf",
            '{index = 0, slot = "a", bdf',
            "trainium.toml: instance_types.trn1.2xlarge.devices[0].slot: is not a key of this table",
        ),
        (
            "trainium.toml",
            'topology = "single"',
            'topology = "star"',
            "trainium.toml: instance_types.trn1.2xlarge.topology: topologies.toml has no topologies.star",
        ),
        (
            "trainium.toml",
            'topology = "single"',
            'topology = "inf1_line4"',
            "trainium.toml: instance_types.trn1.2xlarge.topology: inf1_line4 links 4 devices, but device_count is 1",
        ),
        (
            "trainium.toml",
            'topology = "single"',
            'topology = "single"\ncore_map = "trn2"',
            "trainium.toml: instance_types.trn1.2xlarge.core_map: trn2 does not order 2 cores for each of 1 devices",
        ),
        (
            "topologies.toml",
            'kind = "single"',
            'kind = "knot"',
            "topologies.toml: topologies.single.kind: 'knot' is none of single, line, ring, torus_2d, switched",
        ),
        ("trainium.toml", "[family]\n", "[family]\nage = 4\n", "trainium.toml: family.age: is not a key of this table"),
        ("trainium.toml", "lnc_default = 1", "lnc_default = 2", "trainium.toml: family.lnc_default: 2 is none of"),
        ("trainium.toml", 'name = "trainium"', 'name = "x"', "trainium.toml: family.name: must be 'trainium'"),
        (
            "trainium.toml",
            "fp32 = 47.5",
            'fp32 = "fast"',
            "trainium.toml: family.peak_tflops_per_device.dense.fp32: 'fast' is not of type float",
        ),
        (
            "trainium.toml",
            'device_memory_bytes = {value = 34_359_738_368, status = "observed"',
            'device_memory_bytes = {status = "unknown"',
            "trainium.toml: family.device_memory_bytes: must have a value",
        ),
        ("index.toml", '= "trainium"', "= 4", "index.toml: instance_types.trn1.2xlarge: 4 is not of type str"),
    ],
)
def test_wrong_data_is_refused(data: Path, file: str, old: str, new: str, message: str) -> None:
    change(data / file, old, new)
    with pytest.raises(CatalogDataError) as caught:
        loader.load("trn1.2xlarge")
    assert str(caught.value).startswith(message)


def test_an_index_line_without_a_table_is_refused(data: Path) -> None:
    change(data / "index.toml", '"inf2.xlarge"', '"inf2.4xlarge" = "inferentia2"\n"inf2.xlarge"')
    with pytest.raises(CatalogDataError, match=r"inferentia2.toml: instance_types.inf2.4xlarge: is missing"):
        loader.load("inf2.4xlarge")


def test_every_table_is_in_the_index() -> None:
    in_files = {name for family in loader.family_names() for name in reader.parsed(f"{family}.toml")["instance_types"]}
    assert in_files == set(loader.names())
    groups = {"index.toml", "sources.toml", "topologies.toml"} | {f"{name}.toml" for name in loader.family_names()}
    assert {path.name for path in DATA.iterdir()} == groups
