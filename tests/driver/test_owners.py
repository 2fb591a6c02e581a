"""Who has a device open, and where it is on the bus."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from neurond.sources.sysfs.core_owners import OwnerTracker
from neurond.sources.sysfs.device_reader import GilYield

from neurontools import catalog
from neurontools.driver.devices import DeviceDirectory, read_placements
from neurontools.driver.environment import Roots
from neurontools.driver.processes import (
    ObservedProcess,
    OpenDevices,
    OwnerScan,
    ProcessFiles,
    hidden_processes_warning,
    scan_device_owners,
)

_HOLD = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device file that is called as a Neuron device and is harmless: the kernel's null device."""
    path = tmp_path / "neuron3"
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.close(os.open(path, os.O_RDWR))
    except PermissionError:
        pytest.skip("device files take CAP_MKNOD, and a file system that lets them be opened")
    return path


@pytest.fixture
def holder(device: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"NEURON_PROCESS_TAG": "mine", "NEURON_RT_VISIBLE_CORES": "6-7"}
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(device)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def _directories(*numbers: str) -> list[DeviceDirectory]:
    pairs = enumerate(numbers)
    return [DeviceDirectory(index, index, f"/nowhere/neuron{index}", number, []) for index, number in pairs]


def test_a_real_process_is_found_by_its_open_device(holder: subprocess.Popen[str]) -> None:
    owners, _ = scan_device_owners(Roots(), _directories("505:0", "505:1", "505:2", "1:3"))
    assert OpenDevices(holder.pid, (3,)) in owners
    # The device number beats the name: in its own mount namespace a container's device 3 may be the host's device 1.
    scanning = OwnerScan(Roots(), _directories("505:0", "1:3", "505:2", "505:3"))
    assert scanning.devices_of(holder.pid) == (1,)


def test_what_is_known_of_a_real_process(holder: subprocess.Popen[str], device: Path) -> None:
    found = ObservedProcess("/proc", holder.pid)
    devices = OpenDevices(holder.pid, (3,))
    record = found.record(devices, (), False, 1, 1_000_000.0, found.times())
    assert record.command == f"{sys.executable} -c {_HOLD} {device}"
    assert (record.tag, record.uid, record.runtime_version) == ("mine", os.getuid(), None)
    assert (record.resident_bytes or 0) > 2**20
    assert found.visible_cores() == range(6, 8)


def test_a_process_that_ended_has_no_devices_and_no_times(holder: subprocess.Popen[str]) -> None:
    found = ObservedProcess("/proc", holder.pid)
    assert found.times() is not None
    holder.kill()
    holder.wait()
    assert found.times() is None
    assert OwnerScan(Roots(), _directories("1:3")).devices_of(holder.pid) == ()


def _process(proc: Path, pid: int, *targets: str) -> Path:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True)
    for number, target in enumerate(targets):
        (directory / str(number)).symlink_to(target)
    return directory.parent


def test_links_of_descriptors(tmp_path: Path) -> None:
    _process(tmp_path, 1, "/dev/null", "/dev/neuron0")
    _process(tmp_path, 2, "/dev/neuron1 (deleted)", "/dev/neuron1", "/dev/neuron0")
    _process(tmp_path, 3, "/dev/neuron9", "/dev/neuronx", "/dev/neuron", "/tmp/neuron0.txt", "/dev/neuron0000", "loop")
    (tmp_path / "self").symlink_to("1")
    roots = Roots(proc=str(tmp_path), dev=str(tmp_path))
    assert scan_device_owners(roots, _directories("505:0", "505:1")) == (
        [OpenDevices(1, (0,)), OpenDevices(2, (0, 1))],
        0,
    )


def test_processes_that_are_not_for_us_to_see_are_counted(holder: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    os.seteuid(65534)
    try:
        owners, hidden = scan_device_owners(Roots(), _directories("1:3"))
        assert OwnerScan(Roots(), _directories("1:3")).devices_of(holder.pid) is None
    finally:
        os.seteuid(0)
    assert holder.pid not in [owner.pid for owner in owners]
    assert hidden > 0
    assert hidden_processes_warning(hidden).endswith("run as root or with CAP_SYS_PTRACE")


def test_the_runtime_version_is_in_the_name_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for maps, version in (
        ("7f-7e r-xp 0 0:0 0 /opt/aws/neuron/lib/libnrt.so.2.34.10.0\n", "2.34.10.0"),
        ("7f-7e r-xp 0 0:0 0 /opt/aws/neuron/lib/libnrt.so.2.34.10.0 (deleted)\n", "2.34.10.0"),
        ("7f-7e r-xp 0 0:0 0 /lib/libnrt.so.1\n7f-7e r-xp 0 0:0 0 /lib/x\n", "1"),
        ("7f-7e r-xp 0 0:0 0 /lib/libnrt.so.\n", "unknown"),
        ("7f-7e r-xp 0 0:0 0 /lib/libnrt.so.\x1b[31m\n", "unknown"),
        ("7f-7e r-xp 0 0:0 0 /lib/libc.so.6\n", None),
        ("", None),
    ):
        (tmp_path / "7/maps").write_text(maps)
        assert ProcessFiles(str(tmp_path), 7).runtime_version() == version


def test_a_command_name_with_parentheses_does_not_confuse_the_times(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    numbers = " ".join(str(number) for number in range(3, 52))
    (tmp_path / "7/stat").write_text(f"7 (evil) 1 2) S {numbers}\n")
    times = ProcessFiles(str(tmp_path), 7).times()
    assert times is not None
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = (times.cpu_user_seconds, times.cpu_system_seconds)
    assert (*(round(part * ticks) for part in seconds), times.started_at_ticks) == (13, 14, 21)


def _tracker(proc: Path) -> OwnerTracker:
    return OwnerTracker(OwnerScan(Roots(proc=str(proc), dev=str(proc)), _directories("", "")), GilYield())


def test_all_are_found_in_a_whole_round(tmp_path: Path) -> None:
    for pid in range(1, 300):
        _process(tmp_path, pid, "/dev/neuron1" if pid % 100 == 0 else "/dev/null")
    tracker = _tracker(tmp_path)
    tracker.refresh(whole=True)
    assert tracker.owners == [OpenDevices(100, (1,)), OpenDevices(200, (1,))]
    assert tracker.warnings == ()
    shutil.rmtree(tmp_path / "100")
    tracker.refresh()
    assert tracker.owners == [OpenDevices(200, (1,))], "one that ends is gone at once"


def test_one_that_opens_a_device_late_in_life_is_found_in_turn(tmp_path: Path) -> None:
    for pid in range(1, 50):
        _process(tmp_path, pid, "/dev/null")
    tracker = _tracker(tmp_path)
    for _ in range(200):  # long enough that nobody is young any more
        tracker.refresh()
    (tmp_path / "30/fd/7").symlink_to("/dev/neuron0")
    for _ in range(100):
        tracker.refresh()
    assert tracker.owners == [OpenDevices(30, (0,))]
    (tmp_path / "30/fd/7").unlink()
    tracker.refresh()  # an owner is looked at in every round
    assert tracker.owners == []


def _device(root: Path, bdf: str, *, device: str = "0x7064", numa: str = "0\n", cpus: str = "0-7\n") -> None:
    directory = root / "bus/pci/devices" / bdf
    directory.mkdir(parents=True)
    (directory / "vendor").write_text("0x1d0f\n")
    (directory / "device").write_text(f"{device}\n")
    (directory / "numa_node").write_text(numa)
    (directory / "local_cpulist").write_text(cpus)


ALL = ("bdf", "cpu_affinity", "numa_node")
UNKNOWN = (None, None, None, ())
PLACEMENTS: dict[str, tuple[str, dict[str, dict[str, str]], list[tuple[object, ...]]]] = {
    "the only one of its kind, beside a network card of the same vendor": (
        "trn3pd98.3xlarge",
        {"0000:aa:00.0": {}, "0000:00:05.0": {"device": "0xec20"}},
        [("0000:aa:00.0", "0-7", "0", ())],
    ),
    "several of an unknown order are marked": (
        "trn3e.24xlarge",
        {f"0000:a{number}:00.0": {"numa": f"{number}\n"} for number in (3, 1, 0, 2)},
        [(f"0000:a{at}:00.0", "0-7", str(at), ALL) for at in range(4)],
    ),
    "an address of the catalog that is there, and one that is not": (
        "trn1.32xlarge",
        {"0000:10:1c.0": {"numa": "1\n", "cpus": "4-5\n"}},
        [("0000:10:1c.0", "4-5", "1", ()), UNKNOWN],
    ),
    "without PCI devices the catalog is a conclusion": (
        "trn1.32xlarge",
        {},
        [("0000:10:1c.0", "0-31,64-95", "0", ALL)],
    ),
    "files that hold anything else": (
        "trn1.2xlarge",
        {"0000:00:1e.0": {"numa": "\x1b[31m\n", "cpus": ""}},
        [("0000:00:1e.0", None, None, ())],
    ),
}


@pytest.mark.parametrize(("instance_type", "there", "expected"), PLACEMENTS.values(), ids=PLACEMENTS)
def test_where_devices_are_on_the_bus(
    tmp_path: Path, instance_type: str, there: dict[str, dict[str, str]], expected: list[tuple[object, ...]]
) -> None:
    kind, roots = catalog.load(instance_type), Roots(str(tmp_path))
    for bdf, files in there.items():
        _device(tmp_path, bdf, **{"device": f"0x{kind.family.pci.device_ids[0]}"} | files)

    def shown(of: catalog.InstanceType | None) -> list[tuple[object, ...]]:
        placed = read_placements(roots, kind.family, of, list(range(len(expected))))
        return [(each.bdf, each.cpu_affinity, each.numa_node, each.inferred) for each in placed.values()]

    assert shown(kind) == expected
    if not there:
        assert shown(None) == [UNKNOWN]
