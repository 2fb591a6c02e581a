"""Trees that are laid out in other ways: older drivers, moved nodes, rubbish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neurond.sources.sysfs import SysfsSource

from neurontools.driver.inventory import read_host_snapshot
from neurontools.driver.sysfs_layout import MAX_ENTRIES_PER_DIRECTORY
from neurontools.model import DeviceMemory, EccCounters, HostMemory
from neurontools.testing import DriverTree, process_on
from tests.harness.examples import examples
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import wait_until

ROUNDS = 16  # until what is missing is looked for again


def read(tree: DriverTree) -> SysfsSource:
    source = SysfsSource(tree.roots)
    source.refresh()
    source.close()
    return source


def with_values(tree: DriverTree) -> DriverTree:
    tree.set_processes(process_on(4711, "python", cores=(0, 1), runtime_version="2.34.10"))
    tree.set_cores(
        lambda core: replace(core, memory=DeviceMemory(tensors_bytes=4096), executions_total=7, flop_total=70)
    )
    tree.set_device(0, ecc=EccCounters(1, 2, 3, 4, 5), host_memory=HostMemory(tensors_bytes=8192))
    return tree


VERSIONS = (
    "2.6.33 2.7 2.8 2.9 2.10 2.12 2.14 2.15 2.16 2.17 2.18 2.19 2.20 2.21 2.22 2.23 2.24.7.0 2.25.4 2.27 2.28 2.29 "
    "2.30.2.0"
).split()


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[] if n % 5 == 0 else pytest.mark.slow) for n, each in enumerate(VERSIONS)]
)
@pytest.mark.parametrize("instance_type", ["trn1.2xlarge", pytest.param("trn2.3xlarge", marks=pytest.mark.slow)])
def test_an_older_driver_is_no_warning(version: str, instance_type: str) -> None:
    with DriverTree(instance_type, driver_version=version) as tree:
        with_values(tree)
        reading = read(tree).read()
        numbers = tuple(map(int, version.split(".")))
        assert reading.warnings == ()
        core, device = reading.cores[0], reading.devices[0]
        assert core.status is not None
        assert core.memory.total_bytes == (4096 if numbers >= (2, 7) else None)
        assert core.memory.tensors_bytes == (4096 if numbers >= (2, 10) else None)
        assert core.status.success_total == ((7 if numbers >= (2, 30) else 0) if numbers >= (2, 7) else None)
        assert core.status.execute_failed_to_queue_total == (0 if numbers >= (2, 7) else None)
        assert core.status.oob_error_total == (0 if numbers >= (2, 16) else None)
        assert core.status.hw_repairable_hbm_ue_error_total == (0 if numbers >= (2, 23) else None)
        assert device.ecc.mem_uncorrected_total == (2 if numbers >= (2, 14) else None)
        assert device.ecc.mem_repairable_uncorrected_total == (3 if numbers >= (2, 23) else None)
        assert device.host_memory.tensors_bytes == (8192 if numbers >= (2, 10) else None)
        assert device.serial_number == ("ffffffff00000000" if numbers >= (2, 15) else None)


def test_modes_and_names_of_older_drivers() -> None:
    for version, names, modes in (("2.6.33", 0, set()), ("2.7", 36, {0o600}), ("2.15", 58, {0o644})):
        with DriverTree("trn1.2xlarge", driver_version=version) as tree:
            files = [path for path in tree.core_path(0).rglob("*") if path.is_file()]
            assert (len(files), {path.stat().st_mode & 0o777 for path in files}) == (names, modes)


MOVES = {
    "stats": ("telemetry", "counters/v2", "a/b/c/d"),
    "info": ("about",),
    "stats/status": ("execution/outcomes", "status"),
    "stats/memory_usage": ("memory", "mem/usage"),
    "stats/hardware": ("ras", "hardware/errors"),
    "stats/other_info": ("totals",),
    "stats/power": ("power_data/power",),
}


def move(directory: Path, moves: dict[str, str]) -> None:
    """Moves parts of a directory, those deepest first."""
    for before, after in sorted(moves.items(), key=lambda pair: -pair[0].count("/")):
        if (directory / before).is_dir():
            (directory / after).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(directory / before, directory / after)


@pytest.mark.slow
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.fixed_dictionaries({}, optional={before: st.sampled_from(after) for before, after in MOVES.items()}),
    cores_below=st.sampled_from(["", "cores", "x/y"]),
)
def test_moved_nodes_are_found_by_their_names(moves: dict[str, str], cores_below: str) -> None:
    with DriverTree("trn1.2xlarge", driver_version="2.31.7.0") as tree:
        with_values(tree)
        before = read(tree).read()
        device = tree.device_path(0)
        for part in (device, *device.glob("neuron_core*")):
            move(part, moves)
        if cores_below:
            for core in list(device.glob("neuron_core*")):
                (device / cores_below).mkdir(parents=True, exist_ok=True)
                shutil.move(core, device / cores_below / core.name)
        after = read(tree).read()
        assert [core.memory for core in after.cores] == [core.memory for core in before.cores]
        assert [core.status for core in after.cores] == [core.status for core in before.cores]
        assert [core.flop_total for core in after.cores] == [core.flop_total for core in before.cores]
        assert after.devices == before.devices
        if moves.keys() - {"info"} or cores_below:
            assert "has another layout than this version knows" in after.warnings[0]
        else:
            assert after.warnings == ()


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    with DriverTree("trn2.3xlarge", driver_version="2.31.7.0") as made:
        yield with_values(made)


def make_rubbish(directory: Path) -> None:
    """Names that nobody knows in place of all that this version does."""
    for entry in directory.iterdir():
        if entry.name not in ("dev", "info", "core_count", "connected_devices", "subsystem"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (directory / "blob").write_bytes(b"\0\xff" * 100)
    (directory / "metrics/1/success").mkdir(parents=True)
    (directory / "metrics/1/success/total").write_text("1\n")
    (directory / "mem_ecc_uncorrected").mkdir()
    os.mkfifo(directory / "sram_ecc_uncorrected")


def test_a_layout_without_sense_is_unknown_and_neither_zero_nor_healthy(tree: DriverTree) -> None:
    make_rubbish(tree.device_path(0))
    source = SysfsSource(tree.roots)
    for _ in range(3):
        source.refresh()
    reading = source.read()
    source.close()
    assert "driver 2.31.7.0 has an unknown layout: none of the " in reading.warnings[0]
    device = reading.devices[0]
    for core in reading.cores:
        assert core.status is not None
        for part in (core.memory, core.status, device.ecc, device.host_memory):
            assert set(asdict(part).values()) == {None}
        assert (core.busy_seconds_total, core.flop_total, core.executions_total) == (None, None, None)
    assert device.power is None
    assert [stack.used_bytes for stack in device.hbm_stacks] == [None] * len(device.hbm_stacks)
    owner = next(process for process in reading.processes if process.pid == 4711)
    assert (owner.executions, owner.errors) == (None, None)


def test_what_a_driver_has_twice_or_by_a_link_is_not_taken(tree: DriverTree, tmp_path: Path) -> None:
    device = tree.device_path(0)
    shutil.copytree(device / "stats/hardware", device / "old/hardware")
    move(device, {"stats/hardware": "new/hardware"})
    reading = read(tree).read()
    assert reading.devices[0].ecc == EccCounters()
    assert any("in several places in the tree of driver 2.31.7.0: their values" in line for line in reading.warnings)
    # Links are not followed.
    shutil.rmtree(device / "new")
    shutil.move(device / "old/hardware", tmp_path / "hardware")
    (device / "elsewhere").symlink_to(tmp_path)
    (device / "loop").symlink_to(device)
    reading = read(tree).read()
    assert reading.devices[0].ecc == EccCounters()
    assert any("not in the tree of driver 2.31.7.0" in line for line in reading.warnings)


def test_a_directory_with_too_many_entries_is_given_up_on_and_what_stands_beside_it_is_found(tree: DriverTree) -> None:
    crowd = tree.device_path(0) / "a_crowd"
    crowd.mkdir()
    for number in range(MAX_ENTRIES_PER_DIRECTORY + 1):
        (crowd / f"entry{number}").touch()
    move(tree.device_path(0), {"stats/hardware": "z/hardware"})
    reading = read(tree).read()
    assert reading.devices[0].ecc.mem_uncorrected_total == 2
    shutil.rmtree(tree.device_path(0) / "z")
    reading = read(tree).read()
    assert reading.devices[0].ecc == EccCounters()
    assert any("too large: not all of it was searched" in line for line in reading.warnings)


def test_what_is_missing_is_looked_for_again(tree: DriverTree, tmp_path: Path) -> None:
    device = tree.device_path(0)
    shutil.move(device / "stats/hardware", tmp_path / "hardware")
    source = SysfsSource(tree.roots)
    source.refresh()
    assert source.read().devices[0].ecc == EccCounters()
    (device / "ras").mkdir()
    shutil.copytree(tmp_path / "hardware", device / "ras/hardware")
    for _ in range(ROUNDS):
        source.refresh()
    assert source.read().devices[0].ecc.mem_uncorrected_total == 2
    for core in device.glob("neuron_core*"):
        move(core, {"stats/status": "outcomes"})
    for _ in range(2 * ROUNDS + 2):
        source.refresh()
    status = source.read().cores[0].status
    assert status is not None
    assert status.success_total == 7
    source.close()


@pytest.mark.slow
def test_one_device_of_another_layout_does_not_take_the_others_along() -> None:
    with DriverTree("trn1.32xlarge", driver_version="2.31.7.0") as tree:
        make_rubbish(tree.device_path(0))
        for part in range(12):
            heap = tree.device_path(0) / f"heap{part}"
            heap.mkdir()
            for number in range(1000):
                (heap / str(number)).touch()
        for index in range(2, 16):
            for core in tree.device_path(index).glob("neuron_core*"):
                move(core, {"stats": "telemetry"})
        reading = read(tree).read()
        assert "known files is below neuron0;" in reading.warnings[0]
        assert any("too large" in line for line in reading.warnings)
        assert [core.memory.total_bytes is not None for core in reading.cores] == [False] * 2 + [True] * 30


def test_names_in_a_tree_reach_no_log_in_a_form_that_a_terminal_obeys(tree: DriverTree) -> None:
    device = tree.device_path(0)
    move(device, {"stats/hardware": "\x1b[31m/red\n/hardware"})
    reading = read(tree).read()
    assert reading.devices[0].ecc.mem_uncorrected_total == 2
    assert "\\x1b[31m/red\\x0a/hardware" in reading.warnings[0]
    assert all(line.isprintable() for line in reading.warnings)
    # Without a daemon, and with the firmware silent, only the device itself tells its family.
    move(device, {"info": "about/this/device"})
    tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
    snapshot = read_host_snapshot(tree.roots)
    assert snapshot is not None
    assert snapshot.instance.instance_type.startswith("trn2")


def test_the_daemon_says_which_layout_it_found(start_daemon: StartDaemon, tree: DriverTree) -> None:
    for core in tree.device_path(0).glob("neuron_core*"):
        move(core, {"stats": "telemetry"})
    daemon = start_daemon(*tree.flags, "--interval", "0.05")
    snapshot = daemon.snapshot()
    assert snapshot.cores[0].flop_total == 70
    told = "the tree of driver 2.31.7.0 has another layout than this version knows: "
    assert any(line.startswith(told) for line in snapshot.warnings)
    wait_until(lambda: daemon.log.count(told) == 1)
    with DriverTree("trn1.2xlarge") as known:
        other = start_daemon(*known.flags, "--interval", "0.05", name="other.sock")
        wait_until(lambda: "the tree of driver 2.30.2.0 has the known layout" in other.log)
