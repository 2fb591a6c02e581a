"""Who has a Neuron device open: found in /proc, without ever opening a device.

Opening /dev/neuronN would make us an owner. The descriptors of other users' processes are visible to root and with
CAP_SYS_PTRACE alone; without, those processes are not found, and `hidden` counts them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from neurontools.driver.sysfs.device_directory import MAX_DEVICES, DeviceDirectory
from neurontools.driver.sysfs.process_files import ProcessFiles
from neurontools.driver.sysfs.roots import Roots

MAX_PROCESSES = 65_536
MAX_DESCRIPTORS = 65_536
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class OpenDevices:
    """One process and the indices of the devices it has open."""

    pid: int
    device_indices: tuple[int, ...]


class OwnerScan:
    """Looks through the processes. A device is told by its device number, and where that isn't to be had by name."""

    def __init__(self, roots: Roots, directories: list[DeviceDirectory]) -> None:
        self._roots = roots
        self._real_devices = roots.dev == "/dev"
        self._by_number = {directory.number: directory.index for directory in directories if directory.number}
        self._indices = {directory.index for directory in directories}

    def pids(self) -> list[int]:
        """The processes there are, ascending."""
        try:
            names = os.listdir(self._roots.proc)  # noqa: PTH208 - pathlib is slow
        except OSError:
            return []
        numbers = (int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)
        return sorted(numbers)[:MAX_PROCESSES]

    def devices_of(self, pid: int) -> tuple[int, ...] | None:
        """The devices a process has open, ascending; None when that is not for us to see."""
        directory = f"{self._roots.proc}/{pid}/fd"
        try:
            descriptors = os.listdir(directory)[:MAX_DESCRIPTORS]  # noqa: PTH208 - pathlib is slow
        except PermissionError:
            # Threads of the kernel have neither a command line nor files.
            return None if ProcessFiles(self._roots.proc, pid).command() else ()
        except (OSError, ValueError):  # it ended
            return ()
        found = set()
        for descriptor in descriptors:
            path = f"{directory}/{descriptor}"
            try:
                target = os.readlink(path)  # noqa: PTH115 - pathlib is slow
            except OSError:
                continue
            if "/neuron" in target and (index := self._index(path, target)) is not None:
                found.add(index)
        return tuple(sorted(found))

    def _index(self, path: str, target: str) -> int | None:
        name = target.removesuffix(_DELETED).rpartition("/")[2]
        digits = name.removeprefix("neuron")
        if name == digits or not (digits.isascii() and digits.isdigit()) or len(digits) > 3:
            return None
        # The name is the one of the process's own mount namespace: in a container it may be that of another device.
        number = self._number(path) if self._real_devices else None
        index = self._by_number.get(number, int(digits)) if number else int(digits)
        return index if index in self._indices and index < MAX_DEVICES else None

    @staticmethod
    def _number(path: str) -> str | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - looks at the device, doesn't open it
        except OSError:
            return None
        return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if status.st_rdev else None


def scan(roots: Roots, directories: list[DeviceDirectory]) -> tuple[list[OpenDevices], int]:
    """Everybody who has a device open, by PID, and how many processes could not be looked into."""
    owners: list[OpenDevices] = []
    hidden = 0
    scanning = OwnerScan(roots, directories)
    for pid in scanning.pids():
        devices = scanning.devices_of(pid)
        if devices is None:
            hidden += 1
        elif devices:
            owners.append(OpenDevices(pid, devices))
    return owners, hidden


def hidden_warning(hidden: int) -> str:
    """What to tell when processes could not be looked into."""
    return (
        f"{hidden} processes of other users can't be looked into, so owners of devices may be missing; "
        "run as root or with CAP_SYS_PTRACE"
    )
