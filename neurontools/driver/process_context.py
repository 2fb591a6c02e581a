"""What /proc tells of a process: its runtime, its cores, its environment and its relatives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from neurontools.driver.environment import PROCESS_TAG, InvalidCoreRequest, logical_neuroncore_config
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.driver.processes import OpenDevices, ProcessFiles, ProcessTimes, read_boot_time
from neurontools.driver.sysfs_files import HOST_MEMORY_CATEGORIES, read_bytes, read_whole_file
from neurontools.model import HostMemory, Process
from neurontools.util.process_text import shown_value

MOST_PROCESSES = 64
MOST_DEEP = 8
_SAME_START_SECONDS = 2.0  # the clock may have been set a little since


@dataclass(frozen=True, slots=True)
class ProcessTreeEntry:
    """A process of the tree. `depth`: how far from the first, which is 0."""

    depth: int
    pid: int
    command: str  # "" when it can't be read


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """`problem` is "", or says why nothing is known; secrets in the environment are hidden, None: not for us to see."""

    pid: int
    problem: str = ""
    environment: tuple[tuple[str, str], ...] | None = None
    tree: tuple[ProcessTreeEntry, ...] = ()  # from the first that is known down to those that it has started


def read_process_context(pid: int, started_at_unix_seconds: float | None, proc: str = "/proc") -> ProcessContext:
    """The surroundings of the process that has had this PID since then, on this host."""
    files = ProcessFiles(proc, pid)
    times = files.times()
    if times is None:
        return ProcessContext(
            pid, "there is no such process here; it has ended, or is on another host or in a container"
        )
    boot = read_boot_time(proc)
    if started_at_unix_seconds is not None and boot is not None:
        apart_seconds = abs(boot + times.started_after_boot_seconds - started_at_unix_seconds)
        if apart_seconds > _SAME_START_SECONDS:
            return ProcessContext(pid, "another process has this PID here: the one shown has ended, or is elsewhere")
    environment = files.environment()
    shown = None
    if environment is not None:
        shown = tuple((name, shown_value(name, value)) for name, value in sorted(environment.items()))
    return ProcessContext(pid, "", shown, process_tree(pid, proc))


def process_tree(pid: int, proc: str = "/proc") -> tuple[ProcessTreeEntry, ...]:
    """The line of those who started a process, itself, and those that it has started; at most MOST_PROCESSES."""
    ancestors: list[int] = []
    above = _parent(pid, proc)
    while above > 0 and above not in ancestors and len(ancestors) < MOST_DEEP:
        ancestors.insert(0, above)
        above = _parent(above, proc)
    found = [ProcessTreeEntry(depth, one, _command(one, proc)) for depth, one in enumerate((*ancestors, pid))]
    _add_children(pid, len(ancestors) + 1, proc, found)
    return tuple(found)


def _add_children(pid: int, depth: int, proc: str, found: list[ProcessTreeEntry]) -> None:
    if depth > 2 * MOST_DEEP:
        return
    for child in _children(pid, proc):
        if len(found) >= MOST_PROCESSES:
            return
        found.append(ProcessTreeEntry(depth, child, _command(child, proc)))
        _add_children(child, depth + 1, proc, found)


def _parent(pid: int, proc: str) -> int:
    """0: there is none, or it can't be seen."""
    try:
        return int(read_bytes(f"{proc}/{pid}/stat").rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int, proc: str) -> list[int]:
    """The children of all threads, as CONFIG_PROC_CHILDREN of the kernel has them; none without."""
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


def _command(pid: int, proc: str) -> str:
    return ProcessFiles(proc, pid).command()


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnUsage:
    """vCPU time and memory of this process. The share is over the time between the latest two measurements."""

    def __init__(self) -> None:
        self.cpu_seconds_total: float | None = None
        self.vcpu_ratio: float | None = None
        self.resident_bytes: int | None = None
        self._measured_at_seconds = 0.0

    def measure(self) -> None:
        """Measures now."""
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


SYNTHETIC = "NEURONTOOLS_SYNTHETIC"  # set in the copies of /proc that we write, for processes that a load invented
_MAX_TAG_CHARACTERS = 255
_UNKNOWN_HOST_MEMORY = HostMemory(**{f"{category}_bytes": None for category in HOST_MEMORY_CATEGORIES})


class FoundProcess:
    """One process. What never changes is read once, here; `record` reads the rest.

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
        """Whether it has loaded the Neuron runtime."""
        return self._runtime_version is not None

    @property
    def logical_neuroncore_config(self) -> int | None:
        """The LNC its environment sets; None when it sets none or can't be read."""
        try:
            return logical_neuroncore_config(self.environment or {})
        except InvalidCoreRequest:
            return None

    def visible_cores(self) -> range | None:
        """The logical cores that NEURON_RT_VISIBLE_CORES names; None when it doesn't, or can't be read."""
        try:
            request = CoreRequest.from_environment(self.environment or {})
        except InvalidCoreRequest:
            return None
        if request.first is None or request.count is None:
            return None
        return range(request.first, request.first + request.count)

    def times(self) -> ProcessTimes | None:
        """Its times now; None when it has ended, also when another process has its PID by now."""
        times = self._files.times()
        return times if times is not None and times.started_at_ticks == self._started_ticks else None

    def reread(self) -> None:
        """Reads again what a process may change in its first moments: its program and the libraries it has loaded."""
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
        """The process of the snapshot. `cores`: the physical cores it holds, `is_inferred`: which was concluded."""
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
            host_memory=_UNKNOWN_HOST_MEMORY,
            resident_bytes=None if times is None else times.resident_bytes,
            cpu_user_seconds_total=None if times is None else times.cpu_user_seconds,
            cpu_system_seconds_total=None if times is None else times.cpu_system_seconds,
            # The driver counts by core; whoever can tell whose they are adds them.
            executions=None,
            errors=None,
            reporting=True,
            inferred_fields=("core_indices",) if is_inferred else (),
        )


def user_name(uid: int | None) -> str | None:
    """The name of a user, its number as text when it has no name here."""
    if uid is None:
        return None
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


class HeldCores:
    """Who holds which physical cores.

    `cores` has those of each process with the runtime, by PID. An open device tells the device and not the cores.
    NEURON_RT_VISIBLE_CORES tells them where it fits the devices that are open. Else a process that alone has a device
    open counts as holding all of it, which is a conclusion: its PID is in `inferred_pids`. Of a device that others have
    open too it holds nothing that we know; `candidates` names, by device, the processes that may hold what is left.
    """

    __slots__ = ("candidates", "cores", "inferred_pids")

    def __init__(self, found: Iterable[tuple[FoundProcess, OpenDevices]], cores_per_device: int, lnc: int) -> None:
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
    process: FoundProcess, device_indices: tuple[int, ...], cores_per_device: int, lnc: int
) -> tuple[int, ...]:
    """The cores its environment names, if they are on devices it has open."""
    visible = process.visible_cores()
    if visible is None:
        return ()
    own_lnc = process.logical_neuroncore_config or lnc
    physical = range(visible.start * own_lnc, visible.stop * own_lnc)
    fits = {physical.start // cores_per_device, (physical.stop - 1) // cores_per_device} <= set(device_indices)
    return tuple(physical) if fits else ()
