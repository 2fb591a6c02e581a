"""Which devices there are: in a container, as they go and come back, and where nothing tells their type."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from neurond.sources.sysfs import SysfsSource

from neurontools.errors import UserError
from neurontools.sysfs.roots import Roots
from tests.harness.sysfs_source import MakeTree, Open, core_of


def test_a_device_vanishes_and_comes_back(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    whole = tree.snapshot
    source = open_source(tree)
    tree.remove_device(3)
    source.refresh()
    reading = source.read()
    assert [device.index for device in reading.devices] == [0, 1, 2, *range(4, 16)]
    assert {core.device_index for core in reading.cores} == {0, 1, 2, *range(4, 16)}
    assert reading.warnings == ("neuron3 vanished from the driver's tree; look at dmesg",)
    tree.show(whole)
    tree.set_core(6, flop_total=7)
    assert core_of(source, 6).flop_total == 7
    assert source.read().warnings == ()


def test_all_devices_vanish(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("inf2.xlarge")
    source = open_source(tree)
    tree.remove_device(0)
    source.refresh()
    reading = source.read()
    assert (reading.devices, reading.cores) == ((), ())
    assert reading.warnings == ("neuron0 vanished from the driver's tree; look at dmesg",)


def test_devices_of_a_container_are_those_it_was_given(open_source: Open, make_tree: MakeTree) -> None:
    """The driver's tree shows all devices; /dev has only the container's, under numbers of its own."""
    tree = make_tree("trn1.32xlarge")
    dev = Path(tree.roots.dev)
    for node in dev.iterdir():
        node.unlink()
    for inside, driver_index in ((0, 5), (1, 6)):
        try:
            os.mknod(dev / f"neuron{inside}", 0o600 | stat.S_IFCHR, os.makedev(240, driver_index))
        except PermissionError:
            pytest.skip("device files take CAP_MKNOD")
    tree.set_core(10, flop_total=77)  # of the driver's device 5
    source = open_source(tree)
    reading = source.read()
    assert [device.index for device in reading.devices] == [0, 1]
    assert reading.devices[0].connected_to == (1, 4, 9, 6)  # the host's numbers, as the driver writes them
    assert reading.devices[0].bdf == "0000:20:1c.0"
    assert [core.flop_total for core in reading.cores] == [77, 0, 0, 0]
    assert (source.instance.expected_device_indices, source.instance.foreign_device_count) == ((0, 1), 14)


def test_the_type_is_concluded_where_the_firmware_does_not_tell(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("inf2.24xlarge")
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    instance = open_source(tree).instance
    assert instance.instance_type == "inf2.24xlarge"
    assert "instance_type" in instance.inferred_fields
    tree = make_tree("trn1.32xlarge")  # or trn1n.32xlarge: their devices are the same
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    instance = open_source(tree).instance
    assert (instance.instance_type, instance.device_count) == ("trn1", 16)


def test_inferentia2_and_trainium2_are_told_apart(make_tree: MakeTree, open_source: Open) -> None:
    """Both are NDv3."""
    for instance_type, cores in (("inf2.xlarge", 2), ("trn2.3xlarge", 8)):
        tree = make_tree(instance_type)
        assert (tree.device_path(0) / "info/architecture/arch_type").read_text() == "NDv3\n"
        assert open_source(tree).instance.physical_cores_per_device == cores


def test_no_device_and_unknown_chips_are_clear_errors(tmp_path: Path, make_tree: MakeTree) -> None:
    with pytest.raises(UserError, match="no Neuron devices found under"):
        SysfsSource(Roots(str(tmp_path)))
    tree = make_tree("inf2.xlarge")
    for name in ("arch_type", "instance_type", "device_name"):
        tree.write(f"sys/devices/virtual/neuron_device/neuron0/info/architecture/{name}", "NDv9\n")
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    with pytest.raises(UserError, match=r"no architecture this version knows \(they say NDv9\)"):
        SysfsSource(tree.roots)
