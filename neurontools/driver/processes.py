"""Processes in /proc: their open devices, runtime, cores, environment and tree. Also measures this process itself.

Imports of slow modules are inside functions, because `neuron-ls` loads this module.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from neurontools.driver.devices import MAX_DEVICES, DeviceDirectory
from neurontools.driver.environment import PROCESS_TAG, InvalidCoreRequest, Roots, logical_neuroncore_config
from neurontools.driver.sysfs_files import HOST_MEMORY_CATEGORIES, read_bytes, read_whole_file
from neurontools.model import HostMemory, Process

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable

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
        """Returns the version in the file name of the loaded libnrt.so; "unknown" if the file name has no version.

        Returns None if the process has not loaded the library.
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


def read_run_delay_seconds() -> float | None:
    """Reads how long the main thread of this process was ready to run, but waited for a CPU. None if unreadable."""
    try:
        return int(read_bytes("/proc/self/schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


MAX_PROCESSES = 65_536
MAX_DESCRIPTORS = 65_536


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
        name = target.removesuffix(" (deleted)").rpartition("/")[2]
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


MOST_TREE_PROCESSES = 64
MOST_FOREST_PROCESSES = 1024
MOST_ANCESTORS = 8
_SAME_START_SECONDS = 2.0  # tolerance for start times, because the clock may have been adjusted


@dataclass(frozen=True, slots=True)
class ProcessTreeEntry:
    """A process in a process tree. The root has depth 0."""

    depth: int
    pid: int
    command: str  # "" if unreadable


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """Environment and process tree of a process. Secrets in the environment are hidden.

    `environment` is None if it may not be read. If nothing is known of the process, `problem` states why.
    """

    pid: int
    problem: str = ""
    environment: tuple[tuple[str, str], ...] | None = None
    tree: tuple[ProcessTreeEntry, ...] = ()  # the ancestors, oldest first, then the process and its descendants


def _may_be_same(times: ProcessTimes, started_at_unix_seconds: float | None) -> bool:
    """Returns whether a process with these times may have started at this Unix time. None means unknown."""
    boot = read_boot_time("/proc")
    if started_at_unix_seconds is None or boot is None:
        return True
    return abs(boot + times.started_after_boot_seconds - started_at_unix_seconds) <= _SAME_START_SECONDS


def read_process_context(pid: int, started_at_unix_seconds: float | None) -> ProcessContext:
    from neurontools.util.process_text import shown_value

    files = ProcessFiles("/proc", pid)
    times = files.times()
    if times is None:
        return ProcessContext(
            pid, "there is no such process here; it has ended, or is on another host or in a container"
        )
    if not _may_be_same(times, started_at_unix_seconds):
        return ProcessContext(pid, "another process has this PID here: the one shown has ended, or is elsewhere")
    environment = files.environment()
    shown = None
    if environment is not None:
        shown = tuple((name, shown_value(name, value)) for name, value in sorted(environment.items()))
    return ProcessContext(pid, "", shown, process_tree(pid))


def process_tree(pid: int, proc: str = "/proc") -> tuple[ProcessTreeEntry, ...]:
    """Returns a process with its ancestors and descendants; at most MOST_TREE_PROCESSES."""
    ancestors: list[int] = []
    above = _parent(pid, proc)
    while above > 0 and above not in ancestors and len(ancestors) < MOST_ANCESTORS:
        ancestors.insert(0, above)
        above = _parent(above, proc)
    pids = enumerate((*ancestors, pid))
    found = [ProcessTreeEntry(depth, each, ProcessFiles(proc, each).command()) for depth, each in pids]
    _add_children(pid, len(ancestors) + 1, proc, found)
    return tuple(found)


def read_process_forest(started_at_unix_seconds: dict[int, float | None]) -> tuple[ProcessTreeEntry, ...]:
    """Returns the processes that run here as trees, with ancestors and descendants; at most MOST_FOREST_PROCESSES.

    `started_at_unix_seconds` has the start of each process by PID. A process that is not here is left out.
    """
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for pid, started in started_at_unix_seconds.items():
        times = ProcessFiles("/proc", pid).times()
        if times is None or not _may_be_same(times, started) or len(parents) >= MOST_FOREST_PROCESSES:
            continue
        path: list[int] = []
        for entry in process_tree(pid):
            path[entry.depth :] = [entry.pid]
            parents.setdefault(entry.pid, path[-2] if entry.depth else 0)
            commands[entry.pid] = entry.command
    children: dict[int, list[int]] = {}
    for pid, parent in sorted(parents.items(), reverse=True):
        children.setdefault(parent, []).append(pid)
    found: list[ProcessTreeEntry] = []
    waiting = [(0, pid) for pid in children.get(0, ())]
    while waiting:
        depth, pid = waiting.pop()
        found.append(ProcessTreeEntry(depth, pid, commands[pid]))
        waiting += [(depth + 1, child) for child in children.get(pid, ())]
    return tuple(found[:MOST_FOREST_PROCESSES])


def _add_children(pid: int, depth: int, proc: str, found: list[ProcessTreeEntry]) -> None:
    if depth > 2 * MOST_ANCESTORS:
        return
    for child in _children(pid, proc):
        if len(found) >= MOST_TREE_PROCESSES:
            return
        found.append(ProcessTreeEntry(depth, child, ProcessFiles(proc, child).command()))
        _add_children(child, depth + 1, proc, found)


def _parent(pid: int, proc: str) -> int:
    """Returns the PID of the parent process; 0 if there is no parent, or if it is unreadable."""
    try:
        return int(read_bytes(f"{proc}/{pid}/stat").rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int, proc: str) -> list[int]:
    """Returns the PIDs of the children of all threads of a process. Empty on a kernel without CONFIG_PROC_CHILDREN."""
    children: list[int] = []
    try:
        threads = os.listdir(f"{proc}/{pid}/task")[:1024]  # noqa: PTH208
    except OSError:
        return []
    for thread in threads:
        try:
            words = read_whole_file(f"{proc}/{pid}/task/{thread}/children", 2**16).split()
        except OSError:
            continue
        children += [int(word) for word in words if word.isdigit()]
    return sorted(children)


class OwnUsage:
    """vCPU time and memory of this process. `vcpu_ratio` covers the time between the last two measurements."""

    def __init__(self) -> None:
        self.cpu_seconds_total: float | None = None
        self.vcpu_ratio: float | None = None
        self.resident_bytes: int | None = None
        self._measured_at_seconds = 0.0

    def measure(self) -> None:
        now_seconds, cpu_seconds = time.monotonic(), time.process_time()
        passed_seconds = now_seconds - self._measured_at_seconds
        if self.cpu_seconds_total is not None and passed_seconds > 0:
            self.vcpu_ratio = (cpu_seconds - self.cpu_seconds_total) / passed_seconds
        self.cpu_seconds_total, self._measured_at_seconds = cpu_seconds, now_seconds
        try:
            with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - once a tick
                self.resident_bytes = int(file.read(256).split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            self.resident_bytes = None


SYNTHETIC = "NEURONTOOLS_SYNTHETIC"  # marks processes of a synthetic load in an exported /proc
_MAX_TAG_CHARACTERS = 255
UNKNOWN_HOST_MEMORY = HostMemory(**{f"{category}_bytes": None for category in HOST_MEMORY_CATEGORIES})


class ObservedProcess:
    """A process that has Neuron devices open. The constructor reads the values that do not change.

    A process without the Neuron runtime, such as a monitor, is an observer and holds no cores.
    """

    __slots__ = ("_command", "_files", "_runtime_version", "_started_ticks", "_uid", "_user", "environment", "pid")

    def __init__(self, proc: str, pid: int) -> None:
        self.pid = pid
        self._files = ProcessFiles(proc, pid)
        times = self._files.times()
        self._started_ticks = None if times is None else times.started_at_ticks
        self._uid = self._files.uid()
        self._user = user_name(self._uid)
        self._command = self._files.command()
        self._runtime_version = self._files.runtime_version()
        self.environment = self._files.environment()

    @property
    def uses_runtime(self) -> bool:
        return self._runtime_version is not None

    @property
    def logical_neuroncore_config(self) -> int | None:
        """The LNC in the environment of the process; None if not set or unreadable."""
        try:
            return logical_neuroncore_config(self.environment or {})
        except InvalidCoreRequest:
            return None

    def visible_cores(self) -> range | None:
        """Returns the logical cores in the process's NEURON_RT_VISIBLE_CORES; None if not set or unreadable."""
        from neurontools.driver.neuron_runtime import CoreRequest

        try:
            request = CoreRequest.from_environment(self.environment or {})
        except InvalidCoreRequest:
            return None
        if request.first is None or request.count is None:
            return None
        return range(request.first, request.first + request.count)

    def times(self) -> ProcessTimes | None:
        """Reads CPU times and memory. None if the process ended, even if another process has its PID now."""
        times = self._files.times()
        return times if times is not None and times.started_at_ticks == self._started_ticks else None

    def reread(self) -> None:
        """Rereads command, environment and runtime version, unless the process has already loaded the runtime.

        These values may change shortly after the start (exec).
        """
        if not self.uses_runtime:
            self._runtime_version = self._files.runtime_version()
            self._command = self._files.command() or self._command
            self.environment = self._files.environment()

    def record(
        self,
        devices: OpenDevices,
        cores: tuple[int, ...],
        is_inferred: bool,
        lnc: int,
        boot_unix_seconds: float | None,
        times: ProcessTimes | None,
    ) -> Process:
        """Builds the `Process` of a snapshot. `cores` are its physical cores; `is_inferred` marks them as inferred."""
        tag = (self.environment or {}).get(PROCESS_TAG, "")[:_MAX_TAG_CHARACTERS]
        started = None
        if times is not None and boot_unix_seconds is not None:
            started = boot_unix_seconds + times.started_after_boot_seconds
        own_lnc = self.logical_neuroncore_config or lnc
        return Process(
            pid=self.pid,
            uid=self._uid,
            user=self._user,
            command=self._command,
            tag=tag or str(self.pid),
            runtime_version=self._runtime_version,
            started_at_unix_seconds=started,
            attached_at_unix_seconds=None,
            synthetic=bool((self.environment or {}).get(SYNTHETIC)),
            logical_neuroncore_config=own_lnc,
            core_indices=cores,
            neuroncore_indices=tuple(dict.fromkeys(core // own_lnc for core in cores)),
            device_indices=devices.device_indices,
            host_memory=UNKNOWN_HOST_MEMORY,
            resident_bytes=None if times is None else times.resident_bytes,
            cpu_user_seconds_total=None if times is None else times.cpu_user_seconds,
            cpu_system_seconds_total=None if times is None else times.cpu_system_seconds,
            # None, because the driver counts executions per core, not per process.
            executions=None,
            errors=None,
            reporting=True,
            inferred_fields=("core_indices",) if is_inferred else (),
        )


def user_name(uid: int | None) -> str | None:
    """Returns the name of a user, or the UID as text if the user has no name."""
    if uid is None:
        return None
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except (KeyError, OverflowError):
        return str(uid)


class CoreAttribution:
    """Attributes physical cores to processes.

    `cores` maps the PID of each process that uses the runtime to its cores: those in its NEURON_RT_VISIBLE_CORES that
    are on devices it has open. Without such cores, the process gets all cores of each device that only it has open, and
    is in `inferred_pids`. For a device that several processes share, `candidates` lists the processes without such
    cores.
    """

    def __init__(self, found: Iterable[tuple[ObservedProcess, OpenDevices]], cores_per_device: int, lnc: int) -> None:
        self.cores: dict[int, tuple[int, ...]] = {}
        self.inferred_pids: set[int] = set()
        self.candidates: dict[int, tuple[int, ...]] = {}
        unnamed: dict[int, list[int]] = {}
        users: dict[int, int] = {}
        for process, devices in found:
            if not process.uses_runtime:
                continue
            named = self.cores[process.pid] = _named_cores(process, devices.device_indices, cores_per_device, lnc)
            for index in devices.device_indices:
                users[index] = users.get(index, 0) + 1
                if not named:
                    unnamed.setdefault(index, []).append(process.pid)
        for index, pids in sorted(unnamed.items()):
            if users[index] == 1:
                self.cores[pids[0]] += tuple(range(index * cores_per_device, (index + 1) * cores_per_device))
                self.inferred_pids.add(pids[0])
            else:
                self.candidates[index] = tuple(sorted(pids))


def _named_cores(
    process: ObservedProcess, device_indices: tuple[int, ...], cores_per_device: int, lnc: int
) -> tuple[int, ...]:
    """Returns the physical cores that the process's environment names, if they are on its open devices."""
    visible = process.visible_cores()
    if visible is None:
        return ()
    own_lnc = process.logical_neuroncore_config or lnc
    physical = range(visible.start * own_lnc, visible.stop * own_lnc)
    fits = {physical.start // cores_per_device, (physical.stop - 1) // cores_per_device} <= set(device_indices)
    return tuple(physical) if fits else ()
