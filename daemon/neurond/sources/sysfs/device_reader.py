"""Reads the driver's counter files of devices and cores. Yields the GIL between reads."""

from __future__ import annotations

import errno
import os
import re
import resource
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.sysfs_files import (
    CORE_FILES,
    DEVICE_FILES,
    DEVICE_MEMORY_CATEGORIES,
    ECC_COUNTERS,
    FLOP_COUNT,
    HOST_MEMORY_CATEGORIES,
    INFERENCE_COUNT,
    MAX_COUNT,
    MAX_UINT64,
    POWER_UTILIZATION,
    RESET_FAILURES,
    RESET_REQUESTS,
    STATUS_COUNTERS,
    TIME_IN_USE,
    UNHEALTHY_COMPONENTS,
    device_memory_path,
    files_for_driver,
    host_memory_path,
    open_file,
    other_info_path,
    parse_count,
    path_in_version,
    read_bytes,
    status_path,
    tells_health,
)
from neurontools.driver.sysfs_layout import FileLocations
from neurontools.model import DeviceMemory, EccCounters, HostMemory, PowerUtilization, ReportedHealth, StatusCounters
from neurontools.model.finding import NO_HEALTH
from neurontools.util.terminal import excerpt

_MAX_SHOWN_CHARACTERS = 40
_MAX_REASON_CHARACTERS = 200
_MAX_COMPONENTS = 16
# The driver updates counters at intervals. So unchanged counters keep their earlier measuring time for this long.
# Otherwise a busy core could look idle in one interval and twice as busy in the next.
UPDATE_PATIENCE_SECONDS = 2.0

_MEMORY_COUNT = len(DEVICE_MEMORY_CATEGORIES)
_STATUS_END = _MEMORY_COUNT + len(STATUS_COUNTERS)
_MEMORY_FIELDS = [f"{name}_bytes" for name in DEVICE_MEMORY_CATEGORIES]
_STATUS_FIELDS = [f"{name}_total" for name in STATUS_COUNTERS]
_CORE_PATHS = (
    *(device_memory_path(name) for name in DEVICE_MEMORY_CATEGORIES),
    *(status_path(name) for name in STATUS_COUNTERS),
    *(other_info_path(name) for name in (INFERENCE_COUNT, FLOP_COUNT, TIME_IN_USE)),
    *(other_info_path(name) for name in (RESET_REQUESTS, RESET_FAILURES)),
)
_HOST_PATHS = [host_memory_path(name) for name in HOST_MEMORY_CATEGORIES]
_HOST_FIELDS = [f"{name}_bytes" for name in HOST_MEMORY_CATEGORIES]
_ECC_PATHS = [f"stats/hardware/{name}" for name in ECC_COUNTERS]
_TEXT_PATHS = (POWER_UTILIZATION, UNHEALTHY_COMPONENTS)
_FREE_RUNNING = (f"/{FLOP_COUNT}/", f"/{TIME_IN_USE}/")


def files_to_read(driver_version: tuple[int, ...], generation: int) -> tuple[list[str], list[str]]:
    """Returns the paths to read for a device and for each core, as the newest driver names them."""
    of_device = {file.path for file in files_for_driver(DEVICE_FILES, driver_version, generation)}
    of_core = {file.path for file in files_for_driver(CORE_FILES, driver_version, generation)}
    return (
        [
            path
            for path in (*_HOST_PATHS, *_ECC_PATHS, *_TEXT_PATHS)
            if path_in_version(path, driver_version) in of_device
        ],
        [path for path in _CORE_PATHS if path_in_version(path, driver_version) in of_core],
    )


@dataclass(frozen=True, slots=True)
class CoreReading:
    """The counters of one core. `time_in_use` is in the driver's unit.

    `measured_at_seconds` may be up to 2 s before the read, because the driver updates counters at intervals.
    """

    memory: DeviceMemory
    status: StatusCounters
    inferences: int | None
    flop: int | None
    time_in_use: int | None
    measured_at_seconds: float
    reset_requests: int | None = None
    reset_failures: int | None = None
    is_memory_known: bool = True  # whether all memory files that the driver has were read

    @property
    def is_allocated(self) -> bool:
        """Whether the core has allocated memory besides the driver's own."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)


class DeviceReader:
    """Reads one device. `cores` are its physical cores in logical order. `places` locates its counter files."""

    def __init__(
        self,
        directory: DeviceDirectory,
        cores: list[int],
        places: FileLocations,
        budget: DescriptorBudget,
        gil_yield: GilYield,
        *,
        may_be_replaced: bool,
    ) -> None:
        self.directory = directory
        self.places = places
        self._gil_yield = gil_yield
        read_of_cores = [path for path in _CORE_PATHS if path in places.core]
        self._slots = [read_of_cores.index(path) if path in places.core else -1 for path in _CORE_PATHS]
        expected = {*read_of_cores, *places.missing, *places.ambiguous}
        self._memory_slots = [slot for slot in range(_MEMORY_COUNT) if _CORE_PATHS[slot] in expected]
        at = [places.core[path] for path in read_of_cores]
        before = {place[0] for place in at}
        self._cores_name = f"neuron{directory.index}"
        if len(before) == 1:  # all files of a core are below one directory
            beginning = before.pop()
            self._cores_name += f"/{beginning}*"
            behind = [place[1][1:] for place in at]
            files_of_cores = [(f"{directory.path}/{beginning}{core}", behind) for core in cores]
        else:
            files_of_cores = [(directory.path, [f"{place[0]}{core}{place[1]}" for place in at]) for core in cores]
        self._cores = [
            CounterFiles(path, paths, budget, may_be_replaced=may_be_replaced) for path, paths in files_of_cores
        ]
        self._own_paths = [path for path in (*_HOST_PATHS, *_ECC_PATHS) if path in places.device]
        self._own = CounterFiles(
            directory.path, [places.device[path] for path in self._own_paths], budget, may_be_replaced=may_be_replaced
        )
        self._before: list[tuple[tuple[int | None, ...], CoreReading] | None] = [None] * len(cores)
        self._moved_at: list[float | None] = [None] * len(cores)
        self.decreased_counters: list[str] = []
        self._core_paths = read_of_cores
        self._text_failures: dict[str, str] = {}

    @property
    def files(self) -> list[tuple[str, CounterFiles]]:
        """All counter files of the device and its cores, each with the name of its directory for messages."""
        return [(f"neuron{self.directory.index}", self._own), *((self._cores_name, core) for core in self._cores)]

    @property
    def problems(self) -> list[tuple[str, FileProblems]]:
        """The unreadable files by cause, each group with the name of its directory for messages."""
        name = f"neuron{self.directory.index}"
        of_texts = [(name, {cause: (path, 1)}) for path, cause in self._text_failures.items()]
        return [*((name, files.problems) for name, files in self.files), *of_texts]

    @property
    def unknown_health(self) -> str | None:
        """Why the health of the device is unknown; None if all files that tell it were read."""
        places, name = self.places, f"neuron{self.directory.index}"
        lost = [path for path in (*places.missing, *places.ambiguous) if tells_health(path)]
        unread = [f"{name}/{path} is not in the driver's tree" for path in lost]
        parts = [(self._own, self._own_paths), *((files, self._core_paths) for files in self._cores)]
        for files, paths in parts:
            unread += [
                f"{name}{files.path_of(position)[len(self.directory.path) :]} can't be read: {cause}"
                for position, cause in files.failures.items()
                if tells_health(paths[position])
            ]
        texts = self._text_failures.items()
        unread += [f"{name}/{path} can't be read: {cause}" for path, cause in texts if tells_health(path)]
        if unread:
            more = f" (and {len(unread) - 1} more files)" if len(unread) > 1 else ""
            return excerpt(unread[0], _MAX_REASON_CHARACTERS) + more
        has_evidence = any(map(tells_health, (*places.device, *places.core)))
        return None if has_evidence else NO_HEALTH

    @property
    def lacks_files(self) -> bool:
        return any(_MISSING in files.problems for _, files in self.files)

    def read_device(self) -> tuple[HostMemory, EccCounters]:
        values = dict(zip(self._own_paths, self._own.read(), strict=True))
        host = {field: values.get(path) for field, path in zip(_HOST_FIELDS, _HOST_PATHS, strict=True)}
        ecc = {field: values.get(path) for field, path in zip(ECC_COUNTERS.values(), _ECC_PATHS, strict=True)}
        return HostMemory(**host), EccCounters(**ecc)

    def read_power(self) -> PowerUtilization | None:
        """Returns the device's power in the last full minute; None if unknown."""
        text = self._text(POWER_UTILIZATION, 256)
        power = parsed_power(text)
        if text and power is None and not _POWER_WITHOUT_VALUES.match(text):
            self._text_failures[POWER_UTILIZATION] = "has no power values"
        return power

    def read_health(self) -> ReportedHealth | None:
        """Returns the device's components that the driver lists as unhealthy; None if unknown."""
        text = self._text(UNHEALTHY_COMPONENTS, 512)
        return None if text is None else parsed_health(text)

    def read_cores(self) -> list[CoreReading]:
        """Reads the counters of all cores, in logical order. Reuses the objects of unchanged counters."""
        self.decreased_counters = []
        readings = []
        for position, files in enumerate(self._cores):
            values = files.read()
            at_seconds = time.monotonic()
            raw = tuple([values[slot] if slot >= 0 else None for slot in self._slots])
            before = self._before[position]
            if before is not None:
                at_seconds = self._measured_at(position, before, raw, at_seconds)
            if before is not None and before[0] == raw:
                old = before[1]
                reading = replace(old, measured_at_seconds=at_seconds)
            else:
                if before is not None:
                    self._record_decreases(position, before[0], raw)
                is_memory_known = all(raw[slot] is not None for slot in self._memory_slots)
                reading = replace(_core_reading(raw, at_seconds), is_memory_known=is_memory_known)
            self._before[position] = (raw, reading)
            readings.append(reading)
            self._gil_yield.step()
        return readings

    def _text(self, path: str, limit_bytes: int) -> str | None:
        place = self.places.device.get(path)
        self._text_failures.pop(path, None)
        if place is None:
            return None
        try:
            raw = read_bytes(f"{self.directory.path}/{place}", limit_bytes)
        except (OSError, ValueError) as error:
            self._text_failures[path] = _cause(error)
            return None
        if not raw:  # a driver that can't tell writes nothing, not even a newline
            self._text_failures[path] = "is empty"
            return None
        return raw.decode("utf-8", "replace").strip()

    def close(self) -> None:
        for files in (self._own, *self._cores):
            files.close()

    def _measured_at(
        self, position: int, before: tuple[tuple[int | None, ...], CoreReading], now: tuple[int | None, ...], at: float
    ) -> float:
        """Returns the measuring time. Unchanged counters keep the previous time if they changed less than 2 s ago."""
        if before[0][_STATUS_END:] != now[_STATUS_END:]:
            self._moved_at[position] = at
            return at
        moved_at = self._moved_at[position]
        return at if moved_at is None or at - moved_at >= UPDATE_PATIENCE_SECONDS else before[1].measured_at_seconds

    def _record_decreases(self, position: int, before: tuple[int | None, ...], now: tuple[int | None, ...]) -> None:
        for slot in range(_MEMORY_COUNT, len(_CORE_PATHS)):
            old, new = before[slot], now[slot]
            if old is not None and new is not None and new < old:
                name = _CORE_PATHS[slot].split("/")[2]
                self.decreased_counters.append(f"neuron{self.directory.index} core {position} {name}")


def _core_reading(raw: tuple[int | None, ...], at_seconds: float) -> CoreReading:
    memory = dict(zip(_MEMORY_FIELDS, raw[:_MEMORY_COUNT], strict=True))
    status = dict(zip(_STATUS_FIELDS, raw[_MEMORY_COUNT:_STATUS_END], strict=True))
    inferences, flop, time_in_use, requests, failures = raw[_STATUS_END:]
    return CoreReading(
        DeviceMemory(**memory), StatusCounters(**status), inferences, flop, time_in_use, at_seconds, requests, failures
    )


_POWER_WITHOUT_VALUES = re.compile(r"POWER_STATUS_(?!VALID\b)[A-Z_]+,")


def parsed_health(text: str) -> ReportedHealth:
    """Parses the driver's list of unhealthy components. Shortens and escapes their names."""
    names = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    return ReportedHealth(tuple(excerpt(name, _MAX_SHOWN_CHARACTERS) for name in names)[:_MAX_COMPONENTS])


def parsed_power(text: str | None) -> PowerUtilization | None:
    """Parses the driver's power line. Returns None unless it is valid and plausible."""
    parts = (text or "").split(",")
    if len(parts) != 5 or parts[0] != "POWER_STATUS_VALID":
        return None
    try:
        at = float(int(parts[1]))
        # The percentages of the driver have two decimals, so this rounding loses nothing.
        low, high, mean = (round(float(part) * 100) / 10_000 for part in parts[2:])
    except (ValueError, OverflowError):
        return None
    if not (0 <= at < 2**63 and 0 <= low <= mean <= high <= 2):
        return None
    return PowerUtilization(at, low, high, mean)


FileProblems = dict[str, tuple[str, int]]
"""Maps each cause of failure to an example path and the number of files."""

MAX_BYTES = 64
# Number of file descriptors that counter files leave free for sockets, clients and other uses.
_RESERVED_DESCRIPTORS = 512
# Number of calls of `read` that skip a missing file before the next attempt to open it.
_RETRY_READS = 16

_CLOSED, _OPENED_PER_READ = -1, -2
_MISSING = os.strerror(errno.ENOENT)


class DescriptorBudget:
    """Limits how many counter files may stay open. Raises the soft RLIMIT_NOFILE if needed and allowed."""

    def __init__(self, wanted: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = wanted + _RESERVED_DESCRIPTORS
        if soft != resource.RLIM_INFINITY and soft < needed:
            raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
                soft = raised
            except (ValueError, OSError):
                pass
        self.left = wanted if soft == resource.RLIM_INFINITY else max(0, soft - _RESERVED_DESCRIPTORS)


class CounterFiles:
    """Reads the counter files of one directory. Not thread-safe.

    `values[i]` is the latest count in `paths[i]`; None if unreadable. `failures` maps the position of each unreadable
    file to the cause. `problems` maps each cause to an example path and the number of files. `calls` counts system
    calls.
    """

    def __init__(
        self, directory: str, paths: Sequence[str], budget: DescriptorBudget, *, may_be_replaced: bool = True
    ) -> None:
        self.values: list[int | None] = [None] * len(paths)
        self.problems: FileProblems = {}
        self.calls = 0
        self._directory = directory
        self._paths = tuple(paths)
        self._most = [MAX_UINT64 if any(name in path for name in _FREE_RUNNING) else MAX_COUNT for path in paths]
        self._budget = budget
        self.may_be_replaced = may_be_replaced
        self._descriptors = [_CLOSED] * len(paths)
        self._raw: list[bytes | None] = [None] * len(paths)
        self._wait = [0] * len(paths)
        self.failures: dict[int, str] = {}

    def read(self) -> list[int | None]:
        """Reads all files and returns `values`. The next call overwrites the list."""
        pread, raws, values = os.pread, self._raw, self.values
        fstat = os.fstat if self.may_be_replaced else None
        calls = 0
        for position, descriptor in enumerate(self._descriptors):
            if descriptor >= 0:
                try:
                    if fstat is not None:
                        calls += 1
                        if not fstat(descriptor).st_nlink:
                            self._close(position)
                            self._open_and_read(position)
                            continue
                    raw = pread(descriptor, MAX_BYTES, 0)
                    calls += 1
                except OSError as error:
                    self._close(position)
                    self._set_failed(position, error)
                    continue
                if raw != raws[position]:
                    self._store(position, raw)
            elif self._wait[position]:
                self._wait[position] -= 1
            else:
                self._open_and_read(position)
        self.calls += calls
        self._collect_problems()
        return values

    def path_of(self, position: int) -> str:
        return f"{self._directory}/{self._paths[position]}"

    @property
    def open_descriptors(self) -> list[int]:
        return [descriptor for descriptor in self._descriptors if descriptor >= 0]

    def pop_call_count(self) -> int:
        """Returns the number of system calls since the previous call of this method."""
        calls, self.calls = self.calls, 0
        return calls

    def close(self) -> None:
        for position in range(len(self._descriptors)):
            self._close(position)

    def _open_and_read(self, position: int) -> None:
        try:
            descriptor = open_file(f"{self._directory}/{self._paths[position]}")
            self.calls += 2
        except (OSError, ValueError) as error:
            self.calls += 1
            self._set_failed(position, error)
            return
        try:
            raw = os.pread(descriptor, MAX_BYTES, 0)
            self.calls += 1
        except OSError as error:
            os.close(descriptor)
            self._set_failed(position, error)
            return
        self._store(position, raw)
        if self._budget.left > 0:
            self._budget.left -= 1
            self._descriptors[position] = descriptor
        else:
            os.close(descriptor)
            self.calls += 1
            self._descriptors[position] = _OPENED_PER_READ

    def _store(self, position: int, raw: bytes) -> None:
        self._raw[position] = raw
        value = parse_count(raw)
        if value is None:
            self.failures[position] = "is empty" if not raw.strip() else "has no number"
        elif value > self._most[position]:
            value = None
            self.failures[position] = "its number is too large"
        else:
            self.failures.pop(position, None)
        self.values[position] = value

    def _set_failed(self, position: int, error: OSError | ValueError) -> None:
        self._raw[position] = None
        self.values[position] = None
        number = error.errno if isinstance(error, OSError) else None
        self.failures[position] = _cause(error)
        if number not in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.EINTR, errno.EAGAIN):
            self._wait[position] = _RETRY_READS

    def _close(self, position: int) -> None:
        descriptor, self._descriptors[position] = self._descriptors[position], _CLOSED
        if descriptor >= 0:
            self._budget.left += 1
            os.close(descriptor)

    def _collect_problems(self) -> None:
        self.problems = {}
        for position, cause in self.failures.items():
            path, count = self.problems.get(cause, (self._paths[position], 0))
            self.problems[cause] = (path, count + 1)


def _cause(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "has no readable path"


def may_be_replaced(directory: str) -> bool:
    """Returns whether files in a directory can be replaced by new files of the same name. In sysfs they can't."""
    try:
        number = os.stat(directory).st_dev  # noqa: PTH116
        device = f"{os.major(number)}:{os.minor(number)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:  # noqa: PTH123
            for line in mounts:
                left, _, right = line.partition(" - ")
                if left.split()[2] == device:
                    return right.split()[0] != "sysfs"
    except (OSError, IndexError):
        pass
    return True


_ADVICE = {"Permission denied": "; run neurond as root", "Too many open files": "; raise LimitNOFILE"}


def file_problems(readers: Iterable[Sequence[tuple[str, FileProblems]]]) -> list[str]:
    """Formats one warning per cause of failure, with an example path and the number of unreadable files."""
    causes: dict[str, tuple[str, int]] = {}
    for parts in readers:
        for name, problems in parts:
            for cause, (path, count) in problems.items():
                example, before = causes.get(cause, (f"{name}/{path}", 0))
                causes[cause] = (example, before + count)
    return [
        f"{example}{f' and {count - 1} more files' if count > 1 else ''} can't be read: {cause}{_ADVICE.get(cause, '')}"
        for cause, (example, count) in causes.items()
    ]


_WORK_SECONDS = 0.0005
_REST_SECONDS = 0.0002


class GilYield:
    """Gives the GIL to the event loop. The thread that reads devices calls `step` after each small piece of work.

    The event loop releases the GIL at each system call and gets it back only after the switch interval. If the reading
    thread did not pause, a client's request that needs many system calls would wait after each call.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def step(self) -> None:
        """Sleeps for 0.2 ms if the last sleep was at least 0.5 ms ago. Never sleeps in the main thread."""
        if time.perf_counter() - self._since >= _WORK_SECONDS:
            if threading.get_ident() != threading.main_thread().ident:
                time.sleep(_REST_SECONDS)
            self._since = time.perf_counter()
