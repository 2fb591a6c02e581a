"""The traps of the driver's tree, each with a test on a real directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from neurond.sources.sysfs import SysfsSource

from neurontools.errors import UserError
from neurontools.model import Device, DeviceMemory, EccCounters, NeuronCore, ReportedHealth
from neurontools.sysfs.roots import Roots
from neurontools.testing import DriverTree, process_on

PID = 4711
MakeTree = Callable[..., DriverTree]
Open = Callable[..., SysfsSource]


@pytest.fixture
def make_tree() -> Iterator[MakeTree]:
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(DriverTree(*arguments, **options))


@pytest.fixture
def open_source() -> Iterator[Open]:
    with ExitStack() as stack:

        def make(tree: DriverTree, **options: object) -> SysfsSource:
            source = SysfsSource(tree.roots, **options)  # type: ignore[arg-type]
            stack.callback(source.close)
            source.refresh()
            return source

        yield make


def _core(source: SysfsSource, index: int = 0) -> NeuronCore:
    source.refresh()
    return next(core for core in source.read().cores if core.index == index)


def _device(source: SysfsSource, index: int = 0) -> Device:
    source.refresh()
    return next(device for device in source.read().devices if device.index == index)


def test_total_is_what_is_used_now_and_present_only_the_last_change(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=3000))
    tree.set_core(0, memory=DeviceMemory(tensors_bytes=1000))
    tensors = tree.core_path(0) / "stats/memory_usage/device_mem/tensors"
    assert [(tensors / name).read_text() for name in ("total", "present", "peak")] == ["1000\n", "2000\n", "3000\n"]
    assert _core(source).memory.tensors_bytes == 1000


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
    device = _device(source)
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
    assert _device(source, 3).connected_to == ()
    assert any("neuron3: connected_devices can't be read; run as root" in line for line in source.read().warnings)


def test_neighbours_that_are_too_long_for_the_driver_read_as_nothing(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/connected_devices", "")
    device = _device(open_source(tree))
    assert (device.connected_to, "connected_to" in device.inferred_fields) == ((12, 3, 4, 1), True)


def test_a_lone_newline_means_no_neighbours(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.32xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/connected_devices", "\n")
    device = _device(open_source(tree))
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
    assert _core(source, 3).memory.tensors_bytes == 0


def test_counters_that_wait_for_the_drivers_next_update_count_as_measured_when_they_moved(
    make_tree: MakeTree, open_source: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy core would be idle in the one interval and twice as busy in the next."""
    monkeypatch.setattr("neurond.sources.sysfs.device_reader._PATIENCE_SECONDS", float("inf"))
    tree = make_tree("trn1.2xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10"))
    source = open_source(tree)
    tree.set_core(0, executions_total=4, flop_total=7)
    moved, idle = _core(source), _core(source, 1)
    again = _core(source)
    assert again.measured_at_seconds == moved.measured_at_seconds
    assert source.read().processes[0].measured_at_seconds == moved.measured_at_seconds
    assert (_core(source, 1).measured_at_seconds or 0) > (idle.measured_at_seconds or 0)
    tree.set_core(0, executions_total=8, flop_total=14)
    assert (_core(source).measured_at_seconds or 0) > (moved.measured_at_seconds or 0)
    monkeypatch.setattr("neurond.sources.sysfs.device_reader._PATIENCE_SECONDS", 0.0)
    assert (_core(source).measured_at_seconds or 0) > (again.measured_at_seconds or 0)


def test_old_drivers_say_nothing_of_a_core_while_a_process_runs(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = open_source(tree)
    assert _core(source).busy_seconds_total == 0.0  # nobody is there: idle for certain
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.19.5"))
    for second in range(3):
        tree.set_core(0, busy_seconds_total=float(second), executions_total=second, flop_total=second)
        core = _core(source)
        assert (core.busy_seconds_total, core.executions_total, core.flop_total) == (None, None, None)
        assert core.owner_pid == PID
    tree.set_processes()  # it ends, and the driver adds its whole run at once
    assert _core(source).busy_seconds_total is None
    assert _core(source).busy_seconds_total is None  # the interval of the jump
    assert _core(source).busy_seconds_total == 2.0


def test_memory_shows_an_owner_whom_we_cannot_see(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.24.7.0")
    source = open_source(tree)
    tree.set_core(1, memory=DeviceMemory(tensors_bytes=4096))
    assert _core(source, 0).busy_seconds_total is None
    assert source.read().processes == ()
    tree.set_core(1, memory=DeviceMemory(driver_memory_bytes=4096))  # the driver's own
    assert _core(source, 0).busy_seconds_total == 0.0


def test_new_drivers_say_zero_of_an_idle_core_with_an_owner(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge", driver_version="2.30.2.0")
    tree.set_processes(process_on(PID, "python", cores=(0, 1), runtime_version="2.34.10"))
    source = open_source(tree)
    assert _core(source).busy_seconds_total == 0.0
    assert _core(source).executions_total == 0


def test_logical_cores_are_the_physical_ones_of_the_drivers_map(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.48xlarge")
    source = open_source(tree)
    assert (tree.device_path(0) / "core_count").read_text() == "8"  # physical, whatever the LNC
    total = tree.device_path(0) / "neuron_core4/stats/other_info/flop_count"
    tree.write(str((total / "total").relative_to(tree.directory)), "12345\n")
    assert _core(source, 0).flop_total == 12345
    assert (source.instance.logical_neuroncore_config, source.instance.physical_cores_per_device) == (2, 8)


@pytest.mark.parametrize(("node", "physical"), [("-1", 4), ("0", 4), ("1", 0), ("2", 4), ("3", 0)])
def test_odd_nodes_of_an_ultraserver_are_flipped(
    make_tree: MakeTree, open_source: Open, node: str, physical: int
) -> None:
    tree = make_tree("trn2u.48xlarge")
    tree.write("sys/class/neuron_device/node_id_4", f"{node}\n")
    path = tree.device_path(0) / f"neuron_core{physical}/stats/other_info/flop_count/total"
    tree.write(str(path.relative_to(tree.directory)), "99\n")
    assert _core(open_source(tree), 0).flop_total == 99


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
    assert _core(source, 6).flop_total == 7
    assert source.read().warnings == ()


def test_all_devices_vanish(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("inf2.xlarge")
    source = open_source(tree)
    tree.remove_device(0)
    source.refresh()
    reading = source.read()
    assert (reading.devices, reading.cores) == ((), ())
    assert reading.warnings == ("neuron0 vanished from the driver's tree; look at dmesg",)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        *((content, "is empty") for content in ("", "\n")),
        *((content, "holds no count") for content in ("-5\n", "12 34\n", "1_000\n", "\0\0", "9" * 60, "²\n")),
    ],
)
def test_a_file_that_holds_no_count(make_tree: MakeTree, open_source: Open, content: str, cause: str) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    path = tree.core_path(1) / "stats/memory_usage/device_mem/tensors/total"
    tree.write(str(path.relative_to(tree.directory)), content)
    core = _core(source, 1)
    assert core.memory.tensors_bytes is None
    assert core.memory.constants_bytes == 0
    assert [line for line in source.read().warnings if line.endswith(f"can't be read: {cause}")]
    path.write_text("5\n")
    assert _core(source, 1).memory.tensors_bytes == 5
    assert source.read().warnings == ()


def test_a_link_is_never_followed(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    path = tree.core_path(0) / "stats/other_info/flop_count/total"
    path.unlink()
    path.symlink_to("/proc/self/mem")
    source = open_source(tree)
    assert _core(source).flop_total is None
    assert "neuron0/neuron_core*/stats/other_info/flop_count/total can't be read: Too many levels" in str(
        source.read().warnings
    )


def test_a_file_without_permission(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    (tree.core_path(0) / "stats/other_info/flop_count/total").chmod(0)
    Path(tree.directory).parent.chmod(0o755)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may read everything
        source = open_source(tree)
    finally:
        os.seteuid(user)
    assert source.read().cores[0].flop_total is None
    assert source.read().cores[1].flop_total == 0
    assert any("can't be read: Permission denied; run neurond as root" in line for line in source.read().warnings)


def test_a_counter_that_somebody_cleared(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    tree.set_core(0, flop_total=1000)
    source = open_source(tree)
    path = tree.core_path(0) / "stats/other_info/flop_count/total"
    path.write_text("0\n")
    assert _core(source).flop_total == 0
    assert "1 counters went back since the start (neuron0 core 0 flop_count)" in str(source.read().warnings)


def test_memory_freed_after_it_was_cleared_wraps_and_is_unknown(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    path = tree.core_path(0) / "stats/memory_usage/device_mem/tensors/total"
    path.write_text(f"{2**64 - 4096}\n")
    assert _core(source).memory.tensors_bytes is None


def test_a_file_that_was_replaced_is_read_anew(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    for value in range(1, 20):
        tree.set_core(0, flop_total=value)
        assert _core(source).flop_total == value


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("POWER_STATUS_VALID,1769000040,0.86,25.00,18.86\n", (1769000040.0, 0.0086, 0.25, 0.1886)),
        ("POWER_STATUS_NO_DATA,1769000040,0.00,0.00,0.00\n", None),
        ("POWER_STATUS_VALID,1769000040,nan,25.00,18.86\n", None),
        ("POWER_STATUS_VALID,1769000040,30.00,25.00,18.86\n", None),
        ("POWER_STATUS_VALID\n", None),
        ("", None),
    ],
)
def test_power(
    make_tree: MakeTree, open_source: Open, text: str, power: tuple[float, float, float, float] | None
) -> None:
    tree = make_tree("trn1.2xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/stats/power/utilization", text)
    read = _device(open_source(tree)).power
    shown = (
        None
        if read is None
        else (read.sampled_at_unix_seconds, read.minimum_ratio, read.maximum_ratio, read.average_ratio)
    )
    assert shown == power


def test_ecc_as_far_as_the_hardware_and_driver_have_it(make_tree: MakeTree, open_source: Open) -> None:
    ecc = EccCounters(5, 4, 3, 2, 1)
    expected = {
        ("trn2.3xlarge", "2.30.2.0"): ecc,
        ("trn2.3xlarge", "2.29.0.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("trn1.2xlarge", "2.30.2.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("inf1.xlarge", "2.24.7.0"): EccCounters(),
    }
    for (instance_type, version), read in expected.items():
        tree = make_tree(instance_type, driver_version=version)
        tree.set_device(0, ecc=ecc)
        source = open_source(tree)
        assert _device(source).ecc == read
        assert source.read().warnings == ()


def test_unhealthy_components_are_told(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.3xlarge")
    path = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/health_status/unhealthy_components"
    tree.write(path, "hbm,link_host\n")
    source = open_source(tree)
    assert _device(source).reported_health == ReportedHealth(("hbm", "link_host"))
    assert source.read().warnings == ()
    assert _device(open_source(make_tree("trn2.3xlarge", driver_version="2.29.0.0"))).reported_health is None


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


def test_no_device_and_unknown_chips_are_clear_errors(tmp_path: Path, make_tree: MakeTree) -> None:
    with pytest.raises(UserError, match="no Neuron devices found under"):
        SysfsSource(Roots(str(tmp_path)))
    tree = make_tree("inf2.xlarge")
    for name in ("arch_type", "instance_type", "device_name"):
        tree.write(f"sys/devices/virtual/neuron_device/neuron0/info/architecture/{name}", "NDv9\n")
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    with pytest.raises(UserError, match=r"no architecture this version knows \(they say NDv9\)"):
        SysfsSource(tree.roots)


def test_nothing_is_written_to_the_tree(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.3xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10", logical_neuroncore_config=2))

    def state() -> dict[str, tuple[int, int, int]]:
        entries = {}
        for directory, _, names in os.walk(tree.directory):
            for name in (*names, "."):
                status = Path(directory, name).lstat()
                entries[f"{directory}/{name}"] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return entries

    before = state()
    source = open_source(tree)
    for _ in range(3):
        source.refresh()
    assert state() == before
