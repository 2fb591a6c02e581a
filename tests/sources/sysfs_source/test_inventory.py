"""What doesn't change while the driver is loaded: cores, neighbours, places."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.harness.sysfs_source import MakeTree, Open, core_of, device_of


@pytest.mark.parametrize(("version", "mode"), [("2.24.7.0", 0o400), ("2.27.9.9", 0o400), ("2.28.0.0", 0o444)])
def test_core_count_and_neighbours_are_roots_own_before_2_28(make_tree: MakeTree, version: str, mode: int) -> None:
    device = make_tree("trn1.32xlarge", driver_version=version).device_path(0)
    for name in ("core_count", "connected_devices"):
        assert stat.S_IMODE((device / name).stat().st_mode) == mode
    assert (device / "core_count").read_text() == "2"  # no newline
    assert (device / "connected_devices").read_text() == "12, 3, 4, 1\n"


def test_files_of_root_are_made_up_for_from_the_catalog(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    for index in range(16):  # as unreadable as they can be made for root too
        for name in ("core_count", "connected_devices"):
            path = tree.device_path(index) / name
            path.unlink()
            path.mkdir()
    source = open_source(tree)
    device = device_of(source)
    assert device.connected_to == (12, 3, 4, 1)
    assert "connected_to" in device.inferred_fields
    assert source.read().warnings == ()
    assert len(source.read().cores) == 32


def test_without_a_catalog_entry_unreadable_neighbours_are_a_warning(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    tree.write("sys/devices/virtual/dmi/id/product_name", "trn1.99xlarge\n")
    (tree.device_path(3) / "connected_devices").unlink()
    source = open_source(tree)
    assert source.instance.instance_type == "trn1.99xlarge"
    assert device_of(source, 3).connected_to == ()
    assert any("neuron3: connected_devices can't be read; run as root" in line for line in source.read().warnings)


def test_neighbours_that_are_too_long_for_the_driver_read_as_nothing(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/connected_devices", "")
    device = device_of(open_source(tree))
    assert (device.connected_to, "connected_to" in device.inferred_fields) == ((12, 3, 4, 1), True)


def test_a_lone_newline_means_no_neighbours(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/connected_devices", "\n")
    device = device_of(open_source(tree))
    assert (device.connected_to, device.inferred_fields) == ((), ())


def test_what_was_missing_at_the_start_is_looked_for_again(make_tree: MakeTree, open_source: Open) -> None:
    """As while the driver is loaded: its tree grows bit by bit."""
    tree = make_tree("inf1.xlarge", driver_version="2.24.7.0")
    count = tree.device_path(0) / "core_count"
    count.unlink()
    core = tree.device_path(0) / "neuron_core3"
    core.rename(core.with_name("later"))
    source = open_source(tree)
    assert "neuron0 shows 3 cores where inf1.xlarge has 4" in source.read().warnings
    core.with_name("later").rename(core)
    for _ in range(20):
        source.refresh()
    assert source.read().warnings == ()
    assert core_of(source, 3).memory.tensors_bytes == 0


def test_logical_cores_are_the_physical_ones_of_the_drivers_map(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.48xlarge")
    source = open_source(tree)
    assert (tree.device_path(0) / "core_count").read_text() == "8"  # physical, whatever the LNC
    total = tree.device_path(0) / "neuron_core4/stats/other_info/flop_count"
    tree.write(str((total / "total").relative_to(tree.directory)), "12345\n")
    assert core_of(source, 0).flop_total == 12345
    assert (source.instance.logical_neuroncore_config, source.instance.physical_cores_per_device) == (2, 8)


@pytest.mark.parametrize(("node", "physical"), [("-1", 4), ("0", 4), ("1", 0), ("2", 4), ("3", 0)])
def test_odd_nodes_of_an_ultraserver_are_flipped(
    make_tree: MakeTree, open_source: Open, node: str, physical: int
) -> None:
    tree = make_tree("trn2u.48xlarge")
    tree.write("sys/class/neuron_device/node_id_4", f"{node}\n")
    path = tree.device_path(0) / f"neuron_core{physical}/stats/other_info/flop_count/total"
    tree.write(str(path.relative_to(tree.directory)), "99\n")
    assert core_of(open_source(tree), 0).flop_total == 99


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"node_id_4": "3", "server_id_4": "00000000000000a7"}, (3, 4, "00000000000000a7")),
        ({"node_id_2": "1", "server_id_2": "00000000000000a7"}, (1, 2, "00000000000000a7")),
        ({"node_id_4": "busy", "server_id_4": "busy"}, None),
        ({"node_id_4": "7", "server_id_4": "00000000000000a7"}, None),
        ({"node_id_4": "-1"}, None),
        ({}, None),
    ],
)
def test_the_place_in_an_ultraserver_is_what_its_nodes_elected(
    make_tree: MakeTree, open_source: Open, files: dict[str, str], place: tuple[int, int, str] | None
) -> None:
    tree = make_tree("trn2u.48xlarge")
    for name, text in files.items():
        tree.write(f"sys/class/neuron_device/{name}", f"{text}\n")
    instance = open_source(tree).instance
    node = instance.ultraserver_node
    assert (None if node is None else (node.index, node.node_count, instance.ultraserver_id)) == place
    if node is not None:
        assert (node.name, node.links, node.inferred_fields) == ("Trn2 UltraServer", "ring", ("links",))


def test_trainium3_tells_its_node_without_saying_of_how_many(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn3s.48xlarge")
    tree.write("sys/class/neuron_device/node_id", "2\n")
    tree.write("sys/class/neuron_device/server_id", "00000000000000a7\n")
    instance = open_source(tree).instance
    assert instance.ultraserver_id == "00000000000000a7"
    assert instance.ultraserver_node is not None
    assert (instance.ultraserver_node.index, instance.ultraserver_node.node_count) == (2, 4)


def test_place_on_the_bus(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    device = open_source(tree).read().devices[0]
    assert (device.bdf, device.cpu_affinity, device.numa_node) == ("0000:10:1c.0", "0-31,64-95", "0")
    assert device.inferred_fields == ()
    for path in (Path(tree.roots.sys) / "bus/pci/devices").iterdir():
        for entry in path.iterdir():
            entry.unlink()
    device = open_source(tree).read().devices[0]
    assert device.bdf == "0000:10:1c.0"
    assert device.inferred_fields == ("bdf", "cpu_affinity", "numa_node")
