"""Processes in /proc, and the devices they have open."""

from __future__ import annotations

import os
from dataclasses import dataclass

from neurontools.driver.devices import MAX_DEVICES, DeviceDirectory
from neurontools.driver.environment import Roots
from neurontools.driver.sysfs_files import read_bytes, read_whole_file

MAX_COMMAND_CHARACTERS = 4096
_MAX_ENVIRONMENT_BYTES = 2**20
_MAX_MAPS_BYTES = 2**23
_LIBRARY = b"libnrt.so."
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_VERSION_CHARACTERS = 64
UNKNOWN_VERSION = "unknown"


@dataclass(slots=True)
class ProcessTimes:
    """CPU times, memory and start of a process, from /proc/PID/stat."""

    cpu_user_seconds: float
    cpu_system_seconds: float
    resident_bytes: int
    started_at_ticks: int

    @property
    def started_after_boot_seconds(self) -> float:
        return self.started_at_ticks / _TICKS_PER_SECOND


class ProcessFiles:
    """Reads the files of one process. Unreadable values are None, or "" for texts."""

    __slots__ = ("_directory",)

    def __init__(self, proc: str, pid: int) -> None:
        self._directory = f"{proc}/{pid}"

    def times(self) -> ProcessTimes | None:
        """Reads CPU times, memory and start. None if the process ended."""
        try:
            # The command name in parentheses may itself contain parentheses.
            fields = read_bytes(f"{self._directory}/stat").rpartition(b")")[2].split()
            user, system, started, pages = (int(fields[position]) for position in (11, 12, 19, 21))
        except (OSError, ValueError, IndexError):
            return None
        if min(user, system, started, pages) < 0 or max(user, system, started, pages) >= 2**63:
            return None
        return ProcessTimes(user / _TICKS_PER_SECOND, system / _TICKS_PER_SECOND, pages * _PAGE_BYTES, started)

    def command(self) -> str:
        try:
            raw = read_whole_file(f"{self._directory}/cmdline", 4 * MAX_COMMAND_CHARACTERS)
        except OSError:
            return ""
        return " ".join(raw.decode("utf-8", "replace").split("\0")).strip()[:MAX_COMMAND_CHARACTERS]

    def uid(self) -> int | None:
        try:
            for line in read_bytes(f"{self._directory}/status").split(b"\n"):
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return None

    def environment(self) -> dict[str, str] | None:
        """Reads the environment with which the process started. None if unreadable."""
        try:
            raw = read_whole_file(f"{self._directory}/environ", _MAX_ENVIRONMENT_BYTES)
        except OSError:
            return None
        pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def runtime_version(self) -> str | None:
        """Reads the version in the file name of the loaded libnrt.so. None without the library.

        Returns "unknown" if the file name has no version.
        """
        try:
            maps = read_whole_file(f"{self._directory}/maps", _MAX_MAPS_BYTES)
        except OSError:
            return None
        best = None
        position = maps.find(_LIBRARY)
        while position >= 0:
            end = maps.find(b"\n", position)
            name = maps[position + len(_LIBRARY) : end if end >= 0 else len(maps)]
            text = name.removesuffix(b" (deleted)").decode("ascii", "replace")
            if text and len(text) <= _MAX_VERSION_CHARACTERS and text.replace(".", "").isalnum() and text.isascii():
                return text
            best = UNKNOWN_VERSION
            position = maps.find(_LIBRARY, position + 1)
        return best


def read_boot_time(proc: str) -> float | None:
    """Reads the Unix time of the host's boot. None if unreadable."""
    try:
        for line in read_whole_file(f"{proc}/stat", 2**20).split(b"\n"):
            if line.startswith(b"btime "):
                return float(int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    return None


MAX_PROCESSES = 65_536
MAX_DESCRIPTORS = 65_536
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class OpenDevices:
    """A process and the devices it has open."""

    pid: int
    device_indices: tuple[int, ...]


class OwnerScan:
    """Finds the devices that processes have open, by device number, or by file name if the number is unknown."""

    def __init__(self, roots: Roots, directories: list[DeviceDirectory]) -> None:
        self._roots = roots
        self._real_devices = roots.dev == "/dev"
        self._by_number = {directory.number: directory.index for directory in directories if directory.number}
        self._indices = {directory.index for directory in directories}

    def pids(self) -> list[int]:
        """Returns the PIDs of all processes, ascending."""
        try:
            names = os.listdir(self._roots.proc)  # noqa: PTH208 - pathlib is slow
        except OSError:
            return []
        numbers = (int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)
        return sorted(numbers)[:MAX_PROCESSES]

    def devices_of(self, pid: int) -> tuple[int, ...] | None:
        """Returns the indices of the devices that a process has open, ascending. Returns None if not permitted."""
        directory = f"{self._roots.proc}/{pid}/fd"
        try:
            descriptors = os.listdir(directory)[:MAX_DESCRIPTORS]  # noqa: PTH208 - pathlib is slow
        except PermissionError:
            # A process without a command line is a kernel thread, and has no open files.
            return None if ProcessFiles(self._roots.proc, pid).command() else ()
        except (OSError, ValueError):  # the process ended
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
        # Prefers the device number, because the same file name may be another device in a container.
        number = self._device_number(path) if self._real_devices else None
        index = self._by_number.get(number, int(digits)) if number else int(digits)
        return index if index in self._indices and index < MAX_DEVICES else None

    @staticmethod
    def _device_number(path: str) -> str | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - looks at the device, doesn't open it
        except OSError:
            return None
        return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if status.st_rdev else None


def scan_device_owners(roots: Roots, directories: list[DeviceDirectory]) -> tuple[list[OpenDevices], int]:
    """Returns the processes that have devices open, ordered by PID, and the number of unreadable processes."""
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


def hidden_processes_warning(hidden: int) -> str:
    return (
        f"{hidden} processes of other users can't be inspected, so owners of devices may be missing; "
        "run as root or with CAP_SYS_PTRACE"
    )
