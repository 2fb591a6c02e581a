"""What a source reads: cores, neighbours and places, counters, power, errors, and files that are no counts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from neurond.sources.sysfs import SysfsSource

from neurontools.driver.environment import Roots
from neurontools.driver.tree_export import DRIVER_VERSION
from neurontools.model import Device, DeviceMemory, EccCounters, NeuronCore, ReportedHealth
from neurontools.testing import DriverTree, process_on
from neurontools.util.errors import UserError

PID = 4711


class Drivers(ExitStack):
    """Makes trees and opens sources; a context that closes all of them."""

    def tree(self, instance_type: str, driver_version: str = DRIVER_VERSION) -> DriverTree:
        return self.enter_context(DriverTree(instance_type, driver_version=driver_version))

    def source(self, tree: DriverTree) -> SysfsSource:
        source = SysfsSource(tree.roots)
        self.callback(source.close)
        source.refresh()
        return source


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


def core_of(source: SysfsSource, index: int = 0) -> NeuronCore:
    source.refresh()
    return next(core for core in source.read().cores if core.index == index)


def device_of(source: SysfsSource, index: int = 0) -> Device:
    source.refresh()
    return next(device for device in source.read().devices if device.index == index)


def test_total_is_what_is_used_now_and_present_only_the_last_change(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge")
    source = drivers.source(tree)
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=3000))
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=1000))
    tensors = tree.core_path(0) / "stats/memory_usage/device_mem/tensors"
    assert [(tensors / name).read_text() for name in ("total", "present", "peak")] == ["1000\n", "2000\n", "3000\n"]
    assert core_of(source).memory.tensors_bytes == 1000


def test_counters_that_wait_for_the_drivers_next_update_count_as_measured_when_they_moved(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy core would be idle in the one interval and twice as busy in the next."""
    monkeypatch.setattr("neurond.sources.sysfs.device_reader.UPDATE_PATIENCE_SECONDS", float("inf"))
    tree = drivers.tree("trn1.2xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10"))
    source = drivers.source(tree)
    tree.set_core(0, executions_total=4, flop_total=7)
    moved, idle = core_of(source), core_of(source, 1)
    again = core_of(source)
    assert again.measured_at_seconds == moved.measured_at_seconds
    assert source.read().processes[0].measured_at_seconds == moved.measured_at_seconds
    assert (core_of(source, 1).measured_at_seconds or 0) > (idle.measured_at_seconds or 0)
    tree.set_core(0, executions_total=8, flop_total=14)
    assert (core_of(source).measured_at_seconds or 0) > (moved.measured_at_seconds or 0)
    monkeypatch.setattr("neurond.sources.sysfs.device_reader.UPDATE_PATIENCE_SECONDS", 0.0)
    assert (core_of(source).measured_at_seconds or 0) > (again.measured_at_seconds or 0)


def test_old_drivers_say_nothing_of_a_core_while_a_process_runs(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = drivers.source(tree)
    assert core_of(source).busy_seconds_total == 0.0  # nobody is there: idle for certain
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.19.5"))
    for second in range(3):
        tree.set_core(0, busy_seconds_total=float(second), executions_total=second, flop_total=second)
        core = core_of(source)
        assert (core.busy_seconds_total, core.executions_total, core.flop_total) == (None, None, None)
        assert core.owner_pid == PID
        (process,) = source.read().processes
        assert (process.executions, process.errors) == (None, None)
    tree.set_processes()  # it ends, and the driver adds its whole run at once
    assert core_of(source).busy_seconds_total is None
    assert core_of(source).busy_seconds_total is None  # the interval of the jump
    assert core_of(source).busy_seconds_total == 2.0


def test_memory_shows_an_owner_whom_we_cannot_see(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = drivers.source(tree)
    tree.set_core(1, memory=DeviceMemory(tensors_bytes=4096))
    assert core_of(source, 0).busy_seconds_total is None
    assert source.read().processes == ()
    tree.set_core(1, memory=DeviceMemory(driver_memory_bytes=4096))  # the driver's own
    assert core_of(source, 0).busy_seconds_total == 0.0


def test_new_drivers_say_zero_of_an_idle_core_with_an_owner(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge", driver_version="2.30.2.0")
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.34.10"))
    core = core_of(drivers.source(tree))
    assert (core.busy_seconds_total, core.executions_total) == (0.0, 0)


def test_a_counter_that_somebody_cleared_or_that_wrapped(drivers: Drivers) -> None:
    """Memory that is freed after it was cleared wraps."""
    tree = drivers.tree("trn1.2xlarge")
    tree.set_core(0, flop_total=1000)
    source = drivers.source(tree)
    (tree.core_path(0) / "stats/other_info/flop_count/total").write_text("0\n")
    (tree.core_path(0) / "stats/memory_usage/device_mem/tensors/total").write_text(f"{2**64 - 4096}\n")
    core = core_of(source)
    assert (core.flop_total, core.memory.tensors_bytes) == (0, None)
    assert "1 counters decreased since the start (neuron0 core 0 flop_count)" in str(source.read().warnings)


@pytest.mark.slow
def test_a_device_vanishes_and_comes_back(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.32xlarge")
    whole = tree.snapshot
    source = drivers.source(tree)
    tree.remove_device(3)
    assert drivers.source(tree).instance.device_count == 16
    source.refresh()
    reading = source.read()
    assert [device.index for device in reading.devices] == [0, 1, 2, *range(4, 16)]
    assert {core.device_index for core in reading.cores} == {0, 1, 2, *range(4, 16)}
    assert reading.warnings == ("neuron3 vanished from the driver's tree; look at dmesg",)
    tree.show(whole)
    tree.set_core(6, flop_total=7)
    assert core_of(source, 6).flop_total == 7
    assert source.read().warnings == ()
    small = drivers.tree("inf2.xlarge")
    source = drivers.source(small)
    small.remove_device(0)
    source.refresh()
    reading = source.read()
    assert (reading.devices, reading.cores) == ((), ())
    assert reading.warnings == ("neuron0 vanished from the driver's tree; look at dmesg",)


@pytest.mark.slow
def test_devices_of_a_container_are_those_it_was_given(drivers: Drivers) -> None:
    """The driver's tree shows all devices; /dev has only the container's, under numbers of its own."""
    tree = drivers.tree("trn1.32xlarge")
    dev = Path(tree.roots.dev)
    for node in dev.iterdir():
        node.unlink()
    for inside, driver_index in ((0, 5), (1, 6)):
        try:
            os.mknod(dev / f"neuron{inside}", 0o600 | stat.S_IFCHR, os.makedev(240, driver_index))
        except PermissionError:
            pytest.skip("device files take CAP_MKNOD")
    tree.set_core(10, flop_total=77)  # of the driver's device 5
    source = drivers.source(tree)
    reading = source.read()
    assert [device.index for device in reading.devices] == [0, 1]
    assert reading.devices[0].connected_to == (1, 4, 9, 6)  # the host's numbers, as the driver writes them
    assert reading.devices[0].bdf == "0000:20:1c.0"
    assert [core.flop_total for core in reading.cores] == [77, 0, 0, 0]
    assert (source.instance.expected_device_indices, source.instance.foreign_device_count) == ((0, 1), 14)


@pytest.mark.slow
def test_the_type_is_concluded_where_the_firmware_does_not_tell(drivers: Drivers) -> None:
    for instance_type, cores in (("inf2.xlarge", 2), ("trn2.3xlarge", 8)):
        tree = drivers.tree(instance_type)
        assert (tree.device_path(0) / "info/architecture/arch_type").read_text() == "NDv3\n", "both are"
        assert drivers.source(tree).instance.physical_cores_per_device == cores
    tree = drivers.tree("inf2.24xlarge")
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    instance = drivers.source(tree).instance
    assert instance.instance_type == "inf2.24xlarge"
    assert "instance_type" in instance.inferred_fields
    tree = drivers.tree("trn1.32xlarge")  # or trn1n.32xlarge: their devices are the same
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    instance = drivers.source(tree).instance
    assert (instance.instance_type, instance.device_count) == ("trn1", 16)


def test_no_device_and_unknown_chips_are_clear_errors(tmp_path: Path, drivers: Drivers) -> None:
    with pytest.raises(UserError, match="no Neuron devices found under"):
        SysfsSource(Roots(str(tmp_path)))
    tree = drivers.tree("inf2.xlarge")
    for name in ("arch_type", "instance_type", "device_name"):
        tree.write(f"sys/devices/virtual/neuron_device/neuron0/info/architecture/{name}", "NDv9\n")
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    with pytest.raises(UserError, match=r"an architecture that this version does not know \(NDv9\)"):
        SysfsSource(tree.roots)


CONTENTS = dict.fromkeys(("", "\n"), "is empty")
CONTENTS |= dict.fromkeys(("-5\n", "12 34\n", "1_000\n", "\0\0", "9" * 60, "²\n"), "has no number")
CONTENTS |= dict.fromkeys(("281474976710656\n", "18446744073709551615\n"), "its number is too large")


def test_a_file_that_holds_no_count_or_is_a_link(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge")
    source = drivers.source(tree)
    path = tree.core_path(1) / "stats/memory_usage/device_mem/tensors/total"
    for content, cause in CONTENTS.items():
        tree.write(str(path.relative_to(tree.directory)), content)
        core = core_of(source, 1)
        assert (core.memory.tensors_bytes, core.memory.constants_bytes) == (None, 0)
        assert [line for line in source.read().warnings if line.endswith(f"can't be read: {cause}")]
        path.write_text("5\n")
        assert core_of(source, 1).memory.tensors_bytes == 5
        assert source.read().warnings == ()
    linked = tree.core_path(0) / "stats/other_info/flop_count/total"
    linked.unlink()
    linked.symlink_to("/proc/self/mem")
    source = drivers.source(tree)
    assert core_of(source).flop_total is None
    told = "neuron0/neuron_core*/stats/other_info/flop_count/total can't be read: Too many levels"
    assert told in str(source.read().warnings)


def test_a_file_without_permission(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge")
    (tree.core_path(0) / "stats/other_info/flop_count/total").chmod(0)
    Path(tree.directory).parent.chmod(0o755)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may read everything
        source = drivers.source(tree)
    finally:
        os.seteuid(user)
    assert source.read().cores[0].flop_total is None
    assert source.read().cores[1].flop_total == 0
    assert any("can't be read: Permission denied; run neurond as root" in line for line in source.read().warnings)


def test_nothing_is_written_to_the_tree(drivers: Drivers) -> None:
    tree = drivers.tree("trn2.3xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10", logical_neuroncore_config=2))

    def state() -> dict[str, tuple[int, int, int]]:
        entries = {}
        for directory, _, names in os.walk(tree.directory):
            for name in (*names, "."):
                status = Path(directory, name).lstat()
                entries[f"{directory}/{name}"] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return entries

    before = state()
    source = drivers.source(tree)
    for _ in range(3):
        source.refresh()
    assert state() == before


POWER = {
    "POWER_STATUS_VALID,1769000040,0.86,25.00,18.86\n": (1769000040.0, 0.0086, 0.25, 0.1886),
    "POWER_STATUS_NO_DATA,1769000040,0.00,0.00,0.00\n": None,
    "POWER_STATUS_VALID,1769000040,nan,25.00,18.86\n": None,
    "POWER_STATUS_VALID,1769000040,30.00,25.00,18.86\n": None,
    "POWER_STATUS_VALID\n": None,
    "": None,
}


def test_power(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.2xlarge")
    source = drivers.source(tree)
    for text, power in POWER.items():
        tree.write("sys/devices/virtual/neuron_device/neuron0/stats/power/utilization", text)
        read = device_of(source).power
        shown = read and (read.sampled_at_unix_seconds, read.minimum_ratio, read.maximum_ratio, read.average_ratio)
        assert shown == power
        is_bad = power is None and "NO_DATA" not in text
        assert bool(source.read().warnings) == is_bad, text


@pytest.mark.slow
def test_ecc_as_far_as_the_hardware_and_driver_have_it(drivers: Drivers) -> None:
    ecc = EccCounters(5, 4, 3, 2, 1)
    expected = {
        ("trn2.3xlarge", "2.30.2.0"): ecc,
        ("trn2.3xlarge", "2.29.0.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("trn1.2xlarge", "2.30.2.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("inf1.xlarge", "2.24.7.0"): EccCounters(),
    }
    for (instance_type, version), read in expected.items():
        tree = drivers.tree(instance_type, driver_version=version)
        tree.set_device(0, ecc=ecc)
        source = drivers.source(tree)
        assert device_of(source).ecc == read
        assert source.read().warnings == ()


@pytest.mark.slow
def test_unhealthy_components_are_told(drivers: Drivers) -> None:
    tree = drivers.tree("trn2.3xlarge")
    path = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/health_status/unhealthy_components"
    tree.write(path, "hbm,link_host\n")
    source = drivers.source(tree)
    assert device_of(source).reported_health == ReportedHealth(("hbm", "link_host"))
    assert source.read().warnings == ()
    tree.write(path, "")  # a driver that can't tell; of a healthy device it writes a newline
    assert device_of(source).reported_health is None
    assert source.read().unknown_health == {0: f"{path.partition('neuron_device/')[2]} can't be read: is empty"}
    assert device_of(drivers.source(drivers.tree("trn2.3xlarge", driver_version="2.29.0.0"))).reported_health is None


@pytest.mark.slow
@pytest.mark.parametrize(("version", "mode"), [("2.24.7.0", 0o400), ("2.27.9.9", 0o400), ("2.28.0.0", 0o444)])
def test_core_count_and_neighbours_are_roots_own_before_2_28(drivers: Drivers, version: str, mode: int) -> None:
    device = drivers.tree("trn1.2xlarge", driver_version=version).device_path(0)
    for name in ("core_count", "connected_devices"):
        assert stat.S_IMODE((device / name).stat().st_mode) == mode
    assert (device / "core_count").read_text() == "2"  # no newline


def test_neighbours_and_cores_that_cannot_be_read_are_made_up_for_from_the_catalog(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.32xlarge")
    neighbours = "sys/devices/virtual/neuron_device/neuron0/connected_devices"
    for text, expected in (("", ((12, 3, 4, 1), ("connected_to",))), ("\n", ((), ()))):  # a newline: there are none
        tree.write(neighbours, text)
        device = device_of(drivers.source(tree))
        assert (device.connected_to, device.inferred_fields) == expected
    for index in range(16):  # as unreadable as they can be made for root too
        for name in ("core_count", "connected_devices"):
            path = tree.device_path(index) / name
            path.unlink()
            path.mkdir()
    source = drivers.source(tree)
    device = device_of(source)
    assert (device.connected_to, "connected_to" in device.inferred_fields) == ((12, 3, 4, 1), True)
    assert source.read().warnings == ()
    assert len(source.read().cores) == 32
    tree.write("sys/devices/virtual/dmi/id/product_name", "trn1.99xlarge\n")  # not in the catalog
    source = drivers.source(tree)
    assert source.instance.instance_type == "trn1.99xlarge"
    assert device_of(source, 3).connected_to == ()
    assert any("neuron3: connected_devices can't be read; run as root" in line for line in source.read().warnings)


def test_what_was_missing_at_the_start_is_looked_for_again(drivers: Drivers) -> None:
    """As while the driver is loaded: its tree grows bit by bit."""
    tree = drivers.tree("inf1.xlarge", driver_version="2.24.7.0")
    count = tree.device_path(0) / "core_count"
    count.unlink()
    core = tree.device_path(0) / "neuron_core3"
    core.rename(core.with_name("later"))
    source = drivers.source(tree)
    assert "neuron0 shows 3 cores, but inf1.xlarge has 4" in source.read().warnings
    core.with_name("later").rename(core)
    for _ in range(20):
        source.refresh()
    assert source.read().warnings == ()
    assert core_of(source, 3).memory.tensors_bytes == 0


def test_the_place_in_an_ultraserver_is_what_its_nodes_elected(drivers: Drivers) -> None:
    """Odd nodes of Trainium2 number their cores from the other die."""
    server = "00000000000000a7"
    tree = drivers.tree("trn2u.48xlarge")
    for core in (0, 4):
        counter = tree.device_path(0) / f"neuron_core{core}/stats/other_info/flop_count/total"
        tree.write(str(counter.relative_to(tree.directory)), f"{core}\n")
    nothing: dict[str, str] = {}
    for files, place, physical in (
        (nothing, None, 4),
        ({"node_id_4": "-1"}, None, 4),
        ({"node_id_4": "busy", "server_id_4": "busy"}, None, 4),
        ({"node_id_4": "7", "server_id_4": server}, None, None),
        ({"node_id_4": "0", "server_id_4": server}, (0, 4), 4),
        ({"node_id_4": "1", "server_id_4": server}, (1, 4), 0),
        ({"node_id_4": "2", "server_id_4": server}, (2, 4), 4),
        ({"node_id_4": "3", "server_id_4": server}, (3, 4), 0),
        ({"node_id_4": "-1", "node_id_2": "1", "server_id_2": server}, (1, 2), None),
    ):
        for name, text in files.items():
            tree.write(f"sys/class/neuron_device/{name}", f"{text}\n")
        source = SysfsSource(tree.roots)
        node = source.instance.ultraserver_node
        assert (None if node is None else (node.index, node.node_count)) == place, files
        if node is not None:
            assert (node.name, node.links, node.inferred_fields) == ("Trn2 UltraServer", "ring", ("links",))
            assert source.instance.ultraserver_id == server
        assert physical is None or core_of(source, 0).flop_total == physical, files
        source.close()


@pytest.mark.slow
def test_place_on_the_bus(drivers: Drivers) -> None:
    tree = drivers.tree("trn1.32xlarge")
    device = drivers.source(tree).read().devices[0]
    assert (device.bdf, device.cpu_affinity, device.numa_node) == ("0000:10:1c.0", "0-31,64-95", "0")
    assert device.inferred_fields == ()
    for path in (Path(tree.roots.sys) / "bus/pci/devices").iterdir():
        for entry in path.iterdir():
            entry.unlink()
    device = drivers.source(tree).read().devices[0]
    assert (device.bdf, device.inferred_fields) == ("0000:10:1c.0", ("bdf", "cpu_affinity", "numa_node"))
