"""Reads one device: its own files and those of its cores, as often as asked."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from neurond.sources.sysfs.counter_files import CounterFiles, DescriptorBudget
from neurond.sources.sysfs.pacing import Pacing
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.sysfs_files import (
    CORE_FILES,
    DEVICE_FILES,
    DEVICE_MEMORY_CATEGORIES,
    ECC_COUNTERS,
    FLOP_COUNT,
    HOST_MEMORY_CATEGORIES,
    INFERENCE_COUNT,
    POWER_UTILIZATION,
    STATUS_COUNTERS,
    TIME_IN_USE,
    UNHEALTHY_COMPONENTS,
    device_memory_path,
    files_for_driver,
    host_memory_path,
    other_info_path,
    path_in_version,
    read_text,
    status_path,
)
from neurontools.driver.sysfs_layout import FileLocations
from neurontools.model import DeviceMemory, EccCounters, HostMemory, PowerUtilization, ReportedHealth, StatusCounters
from neurontools.util.terminal import excerpt

# A total below zero as the driver writes it: memory was freed after somebody had cleared its counter by a write.
_WRAPPED = 2**63
_MAX_SHOWN_CHARACTERS = 40
_MAX_COMPONENTS = 16
# Counters that moved and now stand still may only wait for the driver's next update. For so long they count as
# measured when they moved, so that a busy core is not shown as idle in one interval and as twice as busy in the next.
_PATIENCE_SECONDS = 2.0

_MEMORY_COUNT = len(DEVICE_MEMORY_CATEGORIES)
_STATUS_END = _MEMORY_COUNT + len(STATUS_COUNTERS)
_MEMORY_FIELDS = [f"{name}_bytes" for name in DEVICE_MEMORY_CATEGORIES]
_STATUS_FIELDS = [f"{name}_total" for name in STATUS_COUNTERS]
_CORE_PATHS = (
    *(device_memory_path(name) for name in DEVICE_MEMORY_CATEGORIES),
    *(status_path(name) for name in STATUS_COUNTERS),
    *(other_info_path(name) for name in (INFERENCE_COUNT, FLOP_COUNT, TIME_IN_USE)),
    *(other_info_path(name) for name in ("reset_req_count", "reset_fail_count")),
)
_HOST_PATHS = [host_memory_path(name) for name in HOST_MEMORY_CATEGORIES]
_HOST_FIELDS = [f"{name}_bytes" for name in HOST_MEMORY_CATEGORIES]
_ECC_PATHS = [f"stats/hardware/{name}" for name in ECC_COUNTERS]
_TEXT_PATHS = (POWER_UTILIZATION, UNHEALTHY_COMPONENTS)


def files_to_read(driver_version: tuple[int, ...], generation: int) -> tuple[list[str], list[str]]:
    """The files that are read of a device and of each core, by their places of today."""
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
    """The counters of one core; `time_in_use` is raw.

    `measured_at_seconds` is when they were read, or a little earlier: see `_PATIENCE_SECONDS`.
    """

    memory: DeviceMemory
    status: StatusCounters
    inferences: int | None
    flop: int | None
    time_in_use: int | None
    measured_at_seconds: float
    reset_requests: int | None = None
    reset_failures: int | None = None

    @property
    def is_allocated(self) -> bool:
        """Whether somebody has memory on the core, beyond what the driver itself needs."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)


class DeviceReader:
    """One device; `cores[position]` is the physical core at each logical position, `places` where its files are."""

    def __init__(
        self,
        directory: DeviceDirectory,
        cores: list[int],
        places: FileLocations,
        budget: DescriptorBudget,
        pacing: Pacing,
        *,
        may_be_replaced: bool,
    ) -> None:
        self.directory = directory
        self.places = places
        self._pacing = pacing
        places = self.places
        read_of_cores = [path for path in _CORE_PATHS if path in places.core]
        self._slots = [read_of_cores.index(path) if path in places.core else -1 for path in _CORE_PATHS]
        at = [places.core[path] for path in read_of_cores]
        before = {place[0] for place in at}
        self._cores_name = f"neuron{directory.index}"
        if len(before) == 1:  # where all are below one directory, the cores share the rest of their paths
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
        self.went_back: list[str] = []

    @property
    def files(self) -> list[tuple[str, CounterFiles]]:
        """All counter files with the name of their directory, for what went wrong."""
        return [(f"neuron{self.directory.index}", self._own), *((self._cores_name, core) for core in self._cores)]

    @property
    def lacks_files(self) -> bool:
        """Whether a file that was there is not any more, or a core has none of its own."""
        return any(files.is_missing for _, files in self.files)

    def read_device(self) -> tuple[HostMemory, EccCounters]:
        """Host memory by category and ECC events."""
        values = dict(zip(self._own_paths, self._own.read(), strict=True))
        host = {field: _size(values.get(path)) for field, path in zip(_HOST_FIELDS, _HOST_PATHS, strict=True)}
        ecc = {field: values.get(path) for field, path in zip(ECC_COUNTERS.values(), _ECC_PATHS, strict=True)}
        return HostMemory(**host), EccCounters(**ecc)

    def read_power(self) -> PowerUtilization | None:
        """Power of the last full minute; None when the driver has none."""
        return parsed_power(self._text(POWER_UTILIZATION, 256))

    def read_health(self) -> ReportedHealth | None:
        """The components the driver calls unhealthy; None when it doesn't say."""
        text = self._text(UNHEALTHY_COMPONENTS, 512)
        return None if text is None else parsed_health(text)

    def read_cores(self) -> list[CoreReading]:
        """The counters of all cores by logical position. A core that didn't change has equal parts."""
        self.went_back = []
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
                    self._note_went_back(position, before[0], raw)
                reading = _core_reading(raw, at_seconds)
            self._before[position] = (raw, reading)
            readings.append(reading)
            self._pacing.step()
        return readings

    def _text(self, path: str, limit_bytes: int) -> str | None:
        place = self.places.device.get(path)
        return None if place is None else read_text(f"{self.directory.path}/{place}", limit_bytes)

    def close(self) -> None:
        """Closes all files."""
        for files in (self._own, *self._cores):
            files.close()

    def _measured_at(
        self, position: int, before: tuple[tuple[int | None, ...], CoreReading], now: tuple[int | None, ...], at: float
    ) -> float:
        """When the counters of a core were measured that were read just now."""
        if before[0][_STATUS_END:] != now[_STATUS_END:]:
            self._moved_at[position] = at
            return at
        moved_at = self._moved_at[position]
        return at if moved_at is None or at - moved_at >= _PATIENCE_SECONDS else before[1].measured_at_seconds

    def _note_went_back(self, position: int, before: tuple[int | None, ...], now: tuple[int | None, ...]) -> None:
        for slot in range(_MEMORY_COUNT, len(_CORE_PATHS)):
            old, new = before[slot], now[slot]
            if old is not None and new is not None and new < old:
                name = _CORE_PATHS[slot].split("/")[2]
                self.went_back.append(f"neuron{self.directory.index} core {position} {name}")


def _core_reading(raw: tuple[int | None, ...], at_seconds: float) -> CoreReading:
    memory = dict(zip(_MEMORY_FIELDS, map(_size, raw[:_MEMORY_COUNT]), strict=True))
    status = dict(zip(_STATUS_FIELDS, raw[_MEMORY_COUNT:_STATUS_END], strict=True))
    inferences, flop, time_in_use, *resets = raw[_STATUS_END:]
    return CoreReading(
        DeviceMemory(**memory), StatusCounters(**status), inferences, flop, time_in_use, at_seconds, *resets
    )


def _size(value: int | None) -> int | None:
    return None if value is None or value >= _WRAPPED else value


def parsed_health(text: str) -> ReportedHealth:
    """What the driver's line of component names says; what can be no name is shown as far as it can be."""
    names = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    return ReportedHealth(tuple(excerpt(name, _MAX_SHOWN_CHARACTERS) for name in names)[:_MAX_COMPONENTS])


def parsed_power(text: str | None) -> PowerUtilization | None:
    """Power from the driver's line; None unless the driver calls it valid and it can be."""
    parts = (text or "").split(",")
    if len(parts) != 5 or parts[0] != "POWER_STATUS_VALID":
        return None
    try:
        at = float(int(parts[1]))
        # Percentages with two decimals; a ratio is the nearest number to their hundredth.
        low, high, mean = (round(float(part) * 100) / 10_000 for part in parts[2:])
    except (ValueError, OverflowError):
        return None
    if not (0 <= at < 2**63 and 0 <= low <= mean <= high <= 2):
        return None
    return PowerUtilization(at, low, high, mean)
