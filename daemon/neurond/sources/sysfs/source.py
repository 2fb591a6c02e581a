"""Reads the device state of a real host from the driver's sysfs tree and the instance metadata service."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neurond.sources import DeviceReading
from neurond.sources.sysfs.core_owners import CounterAttribution, FoundProcesses, execution_counters, with_host_memory
from neurond.sources.sysfs.device_reader import (
    CoreReading,
    CounterFiles,
    DescriptorBudget,
    DeviceReader,
    GilYield,
    file_problems,
    may_be_replaced,
)
from neurond.sources.sysfs.tree_layout import TreeLayout
from neurontools.driver.devices import DeviceDirectory, DeviceShare, list_device_directories
from neurontools.driver.environment import Roots
from neurontools.driver.inventory import Inventory, read_inventory
from neurontools.driver.sysfs_files import LIVE_COUNTERS_SINCE
from neurontools.model import Device, Instance, NeuronCore, Process, SourceKind
from neurontools.util.errors import UserError

_MAX_WARNINGS = 24
_INVENTORY_ROUNDS = 16  # refreshes between two readings of constant facts, if the last reading gave warnings
_FILES_PER_CORE, _FILES_PER_DEVICE = 40, 16


class SysfsSource:
    """Reads the Neuron driver's tree. Raises UserError if the tree has no device or only unknown devices.

    `lnc`: the host's logical NeuronCore configuration. `time_in_use_unit`: us, ns, ps, or None to detect the unit.
    `use_metadata_service`: gets the instance's identity from the metadata service, in a background thread.
    Only one thread at a time may call `refresh`; any thread may call `read`.
    """

    kind = SourceKind.SYSFS
    is_slow = True

    def __init__(
        self,
        roots: Roots,
        *,
        lnc: int | None = None,
        time_in_use_unit: str | None = None,
        use_metadata_service: bool = False,
    ) -> None:
        inventory = read_inventory(roots, lnc=lnc)
        if inventory is None:
            raise UserError(f"no Neuron devices found under {roots.devices}; is the driver loaded?")
        self.instance: Instance = inventory.instance
        self._roots = roots
        self._lnc = lnc
        self._inventory = inventory
        self._time_in_use = TimeInUse(time_in_use_unit, inventory.driver_version)
        self._gil_yield = GilYield()
        self._processes = FoundProcesses(roots, inventory.directories, self._gil_yield)
        self._attribution = CounterAttribution()
        cores = len(inventory.directories) * self.instance.physical_cores_per_device
        self._budget = DescriptorBudget(cores * _FILES_PER_CORE + len(inventory.directories) * _FILES_PER_DEVICE)
        self._layout = TreeLayout(inventory.driver_version, inventory.architecture.family.generation)
        self._readers = {directory.index: self._reader(directory) for directory in inventory.directories}
        self._first = {directory.index for directory in inventory.directories}
        self._decreased: dict[str, None] = {}
        self._rounds = 0
        self.metadata = MetadataService() if use_metadata_service else None
        self._has_metadata = False
        self._reading = DeviceReading(inventory.devices, (), tuple(inventory.warnings))

    def read(self) -> DeviceReading:
        return self._reading

    def refresh(self) -> None:
        self._follow_devices()
        self._follow_layout()
        self._follow_metadata()
        raw: dict[int, list[CoreReading]] = {index: reader.read_cores() for index, reader in self._readers.items()}
        processes = self._processes.refresh(self.instance)
        users: dict[int, list[int]] = {}
        for process in processes:
            if process.runtime_version is not None:
                for index in process.device_indices:
                    users.setdefault(index, []).append(process.pid)
        owner_of = {core: process for process in reversed(processes) for core in process.core_indices}
        candidates = self._processes.holding.candidates
        cores: list[NeuronCore] = []
        devices: list[Device] = []
        for device in self._inventory.devices:
            device_cores = self._cores(
                device, raw[device.index], tuple(users.get(device.index, ())), owner_of, candidates
            )
            cores += device_cores
            devices.append(self._device(device, device_cores, raw[device.index]))
            self._gil_yield.step()
        self._time_in_use.forget({core.index for core in cores})
        if self._time_in_use.is_live:
            by_index = {core.index: core for core in cores}
            processes = self._attribution.attribute(processes, by_index, self._gil_yield)
        processes = with_host_memory(processes, devices)
        unknown = {index: reader.unknown_health for index, reader in self._readers.items()}
        self._reading = DeviceReading(
            tuple(devices),
            tuple(cores),
            self._warnings(),
            processes,
            unknown_health={index: cause for index, cause in unknown.items() if cause is not None},
        )

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    @property
    def counter_files(self) -> list[CounterFiles]:
        """The counter files of all devices and cores, for benchmarks."""
        return [files for reader in self._readers.values() for _, files in reader.files]

    def _reader(self, directory: DeviceDirectory) -> DeviceReader:
        cores = self._physical_cores(directory)
        return DeviceReader(
            directory,
            cores,
            self._layout.places(directory, cores),
            self._budget,
            self._gil_yield,
            may_be_replaced=may_be_replaced(directory.path),
        )

    def _physical_cores(self, directory: DeviceDirectory) -> list[int]:
        positions = range(self.instance.physical_cores_per_device)
        return [self._inventory.physical_core(directory, position) for position in positions]

    def _follow_layout(self) -> None:
        """Searches for missing files: the driver may have been replaced, or may still be creating its tree."""
        readers = self._readers.values()
        is_missing = any(not reader.places.is_complete or reader.lacks_files for reader in readers)
        if not self._layout.is_due(is_something_missing=is_missing):
            return
        for index, reader in list(self._readers.items()):
            places = self._layout.places(reader.directory, self._physical_cores(reader.directory))
            if places != reader.places:
                reader.close()
                self._readers[index] = self._reader(reader.directory)
            self._gil_yield.step()

    def _follow_devices(self) -> None:
        """Adds devices that appeared and removes those that vanished."""
        present = list_device_directories(self._roots)
        self._rounds += 1
        # Reads the constant facts again if reading them gave warnings: a driver creates its tree step by step.
        is_time = self._rounds % _INVENTORY_ROUNDS == 0
        is_due = is_time and (bool(self._inventory.warnings) or self._is_shared_anew(present))
        if not is_due and list(map(_identity, present)) == list(map(_identity, self._inventory.directories)):
            return
        try:
            inventory = Inventory(self._roots, present, lnc=self._lnc) if present else None
        except UserError:
            inventory = None  # unreadable devices count as vanished
        identities = {each.index: _identity(each) for each in (inventory.directories if inventory else ())}
        is_other_driver = inventory is not None and inventory.driver_version != self._inventory.driver_version
        for index, reader in list(self._readers.items()):
            if is_other_driver or identities.get(index) != _identity(reader.directory):
                reader.close()
                del self._readers[index]
        if inventory is not None and is_other_driver:
            self._layout = TreeLayout(inventory.driver_version, inventory.architecture.family.generation)
        if inventory is None:
            self._inventory.directories, self._inventory.devices = [], ()
        else:
            self._inventory = inventory
            read = inventory.instance
            expected = {*self.instance.expected_device_indices, *read.expected_device_indices}
            self.instance = replace(
                self.instance,
                expected_device_indices=tuple(sorted(expected)),
                foreign_device_count=read.foreign_device_count,
                fileless_device_indices=read.fileless_device_indices,
            )
            for directory in inventory.directories:
                if directory.index not in self._readers:
                    self._readers[directory.index] = self._reader(directory)
            self._first.update(identities)
        self._processes.use_devices(self._inventory.directories)

    def _is_shared_anew(self, present: list[DeviceDirectory]) -> bool:
        """Whether the devices without a file, or the number of devices that this container may not use, changed."""
        share = DeviceShare(self._roots, present)
        current = self.instance.foreign_device_count, set(self.instance.fileless_device_indices)
        return (share.foreign_count, share.fileless) != current

    def _follow_metadata(self) -> None:
        """Applies the instance metadata, once. Uses its instance type only if the known type is inferred."""
        if self._has_metadata or self.metadata is None or not self.metadata.facts:
            return
        self._has_metadata = True
        facts: dict[str, Any] = dict(self.metadata.facts)
        instance_type = facts.pop("instance_type", None)
        if instance_type and "instance_type" in self.instance.inferred_fields:
            inferred = tuple(name for name in self.instance.inferred_fields if name != "instance_type")
            facts |= {"instance_type": instance_type, "inferred_fields": inferred}
        self.instance = replace(self.instance, **facts)

    def _cores(
        self,
        device: Device,
        readings: list[CoreReading],
        pids: tuple[int, ...],
        owner_of: dict[int, Process],
        candidates: dict[int, tuple[int, ...]],
    ) -> list[NeuronCore]:
        per_device = self.instance.physical_cores_per_device
        per_stack = max(1, per_device // max(1, len(device.hbm_stacks)))
        # Allocated memory also reveals processes that are invisible here, such as those of another container.
        is_attached = bool(pids) or any(reading.is_allocated for reading in readings)
        cores = []
        for position, reading in enumerate(readings):
            index = device.index * per_device + position
            busy_seconds = self._time_in_use.measure(
                index, reading.time_in_use, reading.measured_at_seconds, pids, is_attached=is_attached
            )
            is_published = self._time_in_use.is_live or not is_attached
            owner = owner_of.get(index)
            cores.append(
                NeuronCore(
                    index=index,
                    device_index=device.index,
                    index_on_device=position,
                    hbm_stack_index=position // per_stack,
                    owner_pid=None if owner is None else owner.pid,
                    busy_seconds_total=busy_seconds,
                    flop_total=reading.flop if is_published else None,
                    executions_total=execution_counters(reading.inferences, reading.status) if is_published else None,
                    memory=reading.memory,
                    measured_at_seconds=reading.measured_at_seconds,
                    status=reading.status,
                    reset_requests_total=reading.reset_requests,
                    reset_failures_total=reading.reset_failures,
                    candidate_pids=candidates.get(device.index, ()) if owner is None else (),
                    inferred_fields=("owner_pid",) if owner is not None and owner.inferred_fields else (),
                )
            )
        return cores

    def _device(self, device: Device, cores: list[NeuronCore], readings: list[CoreReading]) -> Device:
        reader = self._readers[device.index]
        host_memory, ecc = reader.read_device()
        used: dict[int, int] = {}
        for core in cores:
            size_bytes = core.memory.total_bytes
            if size_bytes is not None:
                used[core.hbm_stack_index] = used.get(core.hbm_stack_index, 0) + size_bytes
        for core, reading in zip(cores, readings, strict=True):
            if not reading.is_memory_known:
                used.pop(core.hbm_stack_index, None)
        return replace(
            device,
            ecc=ecc,
            power=reader.read_power(),
            reported_health=reader.read_health(),
            host_memory=host_memory,
            hbm_stacks=tuple(replace(stack, used_bytes=used.get(stack.index)) for stack in device.hbm_stacks),
        )

    def _warnings(self) -> tuple[str, ...]:
        vanished = sorted(self._first - self._readers.keys())
        warnings = [*self._inventory.warnings]
        if vanished:
            names = ", ".join(f"neuron{index}" for index in vanished)
            warnings.append(f"{names} vanished from the driver's tree; look at dmesg")
        places = tuple((f"neuron{index}", reader.places) for index, reader in self._readers.items())
        warnings += self._layout.warnings(places)
        warnings += file_problems(reader.problems for reader in self._readers.values())
        for reader in self._readers.values():
            self._decreased.update(dict.fromkeys(reader.decreased_counters))
        if self._decreased:
            first = next(iter(self._decreased))
            warnings.append(
                f"{len(self._decreased)} counters decreased since the start ({first}), because a write cleared "
                "them; totals count from there"
            )
        if self.metadata is not None and self.metadata.warning:
            warnings.append(self.metadata.warning)
        warnings += (*self._time_in_use.warnings, *self._processes.warnings)
        left_out = len(warnings) - _MAX_WARNINGS
        return tuple(warnings[:_MAX_WARNINGS]) + ((f"and {left_out} warnings more",) if left_out > 0 else ())


def _identity(directory: DeviceDirectory) -> tuple[int, int, str]:
    return directory.index, directory.driver_index, directory.path


ENDPOINT = "http://169.254.169.254"
PATIENCE_SECONDS = 1.0
_MAX_ANSWER_BYTES = 4096
_LIFE_SECONDS = "60"

# Fields of `model.Instance`, each with the path of its value below /latest/meta-data/ of the metadata service.
_PATHS = {
    "instance_type": "instance-type",
    "instance_id": "instance-id",
    "availability_zone": "placement/availability-zone",
    "availability_zone_id": "placement/availability-zone-id",
    "region": "placement/region",
    "ami_id": "ami-id",
    "instance_name": "tags/instance/Name",
}
_MAC_PATH = "mac"
_SUBNET_PATH = "network/interfaces/macs/{}/subnet-id"


class MetadataService:
    """Queries the instance metadata service in a thread. Sets `facts`, or `warning` after a failure."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.facts: dict[str, str] = {}
        self.warning = ""
        self._endpoint = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or ENDPOINT
        self.thread: threading.Thread | None = None
        if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            self.thread = threading.Thread(target=self._fetch_facts, name="metadata-service", daemon=True)
            self.thread.start()

    def _fetch_facts(self) -> None:
        try:
            self.facts = _facts(self._endpoint)
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", None) or error
            self.warning = f"the instance metadata service at {self._endpoint} does not answer ({cause}); see --imds"
        except Exception as error:  # an invalid HTTP response
            self.warning = f"the instance metadata service at {self._endpoint} gave an invalid answer ({error})"


def _facts(endpoint: str) -> dict[str, str]:
    """Fetches all facts of the instance. Raises OSError if the service is unreachable or refuses a token."""
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": _LIFE_SECONDS}
    token = _request(f"{endpoint}/latest/api/token", headers, method="PUT")
    facts = {}
    for field, path in _PATHS.items():
        answer = _fetch_value(endpoint, path, token)
        if answer:
            facts[field] = answer
    mac = _fetch_value(endpoint, _MAC_PATH, token)
    if mac and (subnet := _fetch_value(endpoint, _SUBNET_PATH.format(mac), token)):
        facts["subnet_id"] = subnet
    return facts


def _fetch_value(endpoint: str, path: str, token: str) -> str:
    """Fetches one value of the metadata. Returns "" if it is absent, for example if instance tags are disabled."""
    try:
        return _request(f"{endpoint}/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
    except (OSError, ValueError):
        return ""


def _request(url: str, headers: dict[str, str], method: str = "GET") -> str:
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise ValueError("not an http address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # link-local addresses need no proxy
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - checked above
    try:
        with opener.open(request, timeout=PATIENCE_SECONDS) as reply:
            text: str = reply.read(_MAX_ANSWER_BYTES).decode("ascii", "replace").strip()
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    if not text.isprintable() or len(text) > 256:
        raise ValueError("the answer is not a name")
    return text


UNITS_PER_SECOND = {"us": 1e6, "ns": 1e9, "ps": 1e12}
_HIGHEST_RATIO = 1.05  # clocks jitter
_MAX_RATIO = 2.5  # above this busy ratio, the counter may include work of the previous interval
_DISPROVING_RATIO = 10.0  # a higher busy ratio in two consecutive intervals shows that the time unit is wrong
_WINDOW_SECONDS, _WINDOW_RATIO = 30.0, 1.1  # a higher busy ratio over this time shows that the unit is wrong
_UNIT_NAMES = {"us": "microseconds", "ns": "nanoseconds", "ps": "picoseconds"}


class TimeInUse:
    """Converts nc_time_in_use of one driver to busy seconds. Detects the unit unless `unit` is given."""

    def __init__(self, unit: str | None, driver_version: tuple[int, ...] | None) -> None:
        self.unit = unit or "us"
        self.is_fixed = unit is not None
        self.highest_units_per_second = 0.0
        self.is_live = driver_version is not None and driver_version >= LIVE_COUNTERS_SINCE
        self._cores: dict[int, _Core] = {}

    def measure(
        self, core: int, raw: int | None, at_seconds: float, owners: object, *, is_attached: bool
    ) -> float | None:
        """Returns the busy seconds of a core so far; None while they are unknown.

        `owners` must compare equal while the same processes have the core's device open.
        """
        state = self._cores.get(core)
        if state is None:
            state = self._cores[core] = _Core()
        is_same = at_seconds == state.at_seconds
        grown = state.grown(raw, at_seconds, owners)
        if raw is None:
            return None
        if grown is not None and state.is_steady:
            # Old drivers update counters only at process exit.
            # If a counter grows in two intervals with the same owners, this driver updates it during executions.
            state.growing = state.growing + 1 if grown > 0 and is_attached else 0
            if state.growing >= 2:
                self.is_live = True
            self._calibrate(state, grown, raw, at_seconds)
        elif not is_same or not state.is_steady:
            state.growing = state.excess = 0
            state.window = None
        if not self.is_live and (is_attached or not state.is_steady):
            return None
        if grown is not None and grown / UNITS_PER_SECOND[self.unit] > _MAX_RATIO:
            return None
        return raw / UNITS_PER_SECOND[self.unit]

    def forget(self, present: set[int]) -> None:
        for core in self._cores.keys() - present:
            del self._cores[core]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns a warning if the unit was inferred and is not microseconds."""
        if self.is_fixed or self.unit == "us":
            return ()
        text = (
            f"nc_time_in_use grew by {self.highest_units_per_second:.3g} units a second, more than microseconds allow: "
            f"the unit is assumed to be {_UNIT_NAMES[self.unit]} (sysfs.time_in_use_unit sets it)"
        )
        return (text,)

    def _calibrate(self, state: _Core, units_per_second: float, raw: int, at_seconds: float) -> None:
        if self.is_fixed or not self.is_live:
            return
        is_far_beyond = units_per_second / UNITS_PER_SECOND[self.unit] > _DISPROVING_RATIO
        state.excess = state.excess + 1 if is_far_beyond else 0
        if state.excess >= 2:
            self._refine(units_per_second)
            return
        sustained = state.sustained(raw, at_seconds)
        if sustained is not None and sustained / UNITS_PER_SECOND[self.unit] > _WINDOW_RATIO:
            self._refine(sustained)

    def _refine(self, units_per_second: float) -> None:
        self.highest_units_per_second = max(self.highest_units_per_second, units_per_second)
        fitting = [unit for unit, each in UNITS_PER_SECOND.items() if units_per_second / each <= _HIGHEST_RATIO]
        if fitting:  # a finer unit, because with this one the core is busy for more than 100 %
            self.unit = fitting[0]
            for core in self._cores.values():
                core.excess = 0
                core.window = None


class _Core:
    """The latest counter of one core with the time of its reading, and the core's latest two sets of owners.

    `is_steady` means that the last three sets of owners are equal. Two equal sets are not enough: owners are read after
    the counter, so the latest set lacks an owner that ended between the two readings.
    """

    __slots__ = ("at_seconds", "excess", "growing", "is_steady", "owners", "owners_before", "raw", "window")

    def __init__(self) -> None:
        self.raw: int | None = None
        self.at_seconds: float | None = None
        self.owners: object = None
        self.owners_before: object = None
        self.growing = 0
        self.excess = 0
        self.window: tuple[int, float] | None = None  # counter and its time at the window's start

    def sustained(self, raw: int, at_seconds: float) -> float | None:
        """Returns the counter's growth per second over a whole window at the end of the window; None at other times."""
        if self.window is None:
            self.window = raw, at_seconds
            return None
        seconds = at_seconds - self.window[1]
        if seconds < _WINDOW_SECONDS:
            return None
        growth = (raw - self.window[0]) / seconds
        self.window = raw, at_seconds
        return growth

    def grown(self, raw: int | None, at_seconds: float, owners: object) -> float | None:
        """Returns the counter's growth per second since the last reading; None at first or after a reset."""
        grown = None
        if self.at_seconds is None:
            self.owners = self.owners_before = owners
        elif raw is not None and self.raw is not None and raw >= self.raw and at_seconds > self.at_seconds:
            grown = (raw - self.raw) / (at_seconds - self.at_seconds)
        self.is_steady = owners == self.owners == self.owners_before
        self.raw, self.at_seconds = raw, at_seconds
        self.owners_before, self.owners = self.owners, owners
        return grown
