"""Devices read from the driver: levels, counters and owners, and words for what could not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neurond.sources.source import Reading
from neurond.sources.sysfs.attribution import Attribution, executions_of, with_host_memory
from neurond.sources.sysfs.counter_files import DescriptorBudget, may_be_replaced
from neurond.sources.sysfs.device_reader import CoreReading, DeviceReader
from neurond.sources.sysfs.found_processes import FoundProcesses
from neurond.sources.sysfs.metadata_service import MetadataService
from neurond.sources.sysfs.pacing import Pacing
from neurond.sources.sysfs.problems import file_problems
from neurond.sources.sysfs.time_in_use import TimeInUse
from neurond.sources.sysfs.tree_layout import TreeLayout
from neurontools.driver.devices import DeviceDirectory, DeviceShare, list_device_directories
from neurontools.driver.environment import Roots
from neurontools.driver.inventory import Inventory, read_inventory
from neurontools.model import Device, Instance, NeuronCore, Process, SourceKind
from neurontools.util.errors import UserError

_MAX_WARNINGS = 24
_INVENTORY_ROUNDS = 16  # so often what doesn't change is read again while something is wrong with it
_FILES_PER_CORE, _FILES_PER_DEVICE = 40, 16


class SysfsSource:
    """The Neuron driver under some roots. UserError when it shows no device, or none this version knows.

    `lnc`: the host's logical NeuronCore configuration. `time_in_use_unit`: us, ns or ps, None to find out.
    `use_metadata_service`: complete the instance's identity from it, in the background.
    `refresh` belongs to one thread at a time, `read` may be called from another.
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
        self._pacing = Pacing()
        self._processes = FoundProcesses(roots, inventory.directories, self._pacing)
        self._attribution = Attribution()
        cores = len(inventory.directories) * self.instance.physical_cores_per_device
        self._budget = DescriptorBudget(cores * _FILES_PER_CORE + len(inventory.directories) * _FILES_PER_DEVICE)
        self._layout = TreeLayout(inventory.driver_version, inventory.architecture.family.generation)
        self._readers = {directory.index: self._reader(directory) for directory in inventory.directories}
        self._first = {directory.index for directory in inventory.directories}
        self._went_back: dict[str, None] = {}
        self._rounds = 0
        self.metadata = MetadataService() if use_metadata_service else None
        self._is_told = False
        self._reading = Reading(inventory.devices, (), tuple(inventory.warnings))

    def read(self) -> Reading:
        """What the latest `refresh` found."""
        return self._reading

    def refresh(self) -> None:
        """Reads everything that changes, and what devices there are."""
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
            made = self._cores(device, raw[device.index], tuple(users.get(device.index, ())), owner_of, candidates)
            cores += made
            devices.append(self._device(device, made))
            self._pacing.step()
        self._time_in_use.forget({core.index for core in cores})
        credited = with_host_memory(self._credited(processes, cores), devices)
        self._reading = Reading(tuple(devices), tuple(cores), self._warnings(), credited)

    def close(self) -> None:
        """Closes all files."""
        for reader in self._readers.values():
            reader.close()

    def take_calls(self) -> int:
        """System calls on counter files since this was last asked; for measurements."""
        return sum(files.take_calls() for reader in self._readers.values() for _, files in reader.files)

    def descriptors(self) -> list[int]:
        """The counter files that are kept open; for measurements."""
        return [number for reader in self._readers.values() for _, files in reader.files for number in files.kept]

    def set_may_be_replaced(self, value: bool) -> None:
        """Whether to look for files that were replaced since they were opened, whatever file system they are on."""
        for reader in self._readers.values():
            for _, files in reader.files:
                files.may_be_replaced = value

    def _reader(self, directory: DeviceDirectory) -> DeviceReader:
        cores = self._physical_cores(directory)
        return DeviceReader(
            directory,
            cores,
            self._layout.places(directory, cores),
            self._budget,
            self._pacing,
            may_be_replaced=may_be_replaced(directory.path),
        )

    def _physical_cores(self, directory: DeviceDirectory) -> list[int]:
        positions = range(self.instance.physical_cores_per_device)
        return [self._inventory.physical_core(directory, position) for position in positions]

    def _follow_layout(self) -> None:
        """Looks for files that are missing: the driver may have been replaced, or made its tree bit by bit."""
        readers = self._readers.values()
        is_missing = any(not reader.places.is_complete or reader.lacks_files for reader in readers)
        if not self._layout.is_due(is_something_missing=is_missing):
            return
        for index, reader in list(self._readers.items()):
            places = self._layout.places(reader.directory, self._physical_cores(reader.directory))
            if places != reader.places:
                reader.close()
                self._readers[index] = self._reader(reader.directory)
            self._pacing.step()

    def _follow_devices(self) -> None:
        """Takes in devices that came and lets those go that vanished."""
        present = list_device_directories(self._roots)
        self._rounds += 1
        # What was missing may have come: a driver that is being loaded makes its tree bit by bit.
        is_time = self._rounds % _INVENTORY_ROUNDS == 0
        is_due = is_time and (bool(self._inventory.warnings) or self._is_shared_anew(present))
        if not is_due and _identities(present) == _identities(self._inventory.directories):
            return
        try:
            inventory = Inventory(self._roots, present, lnc=self._lnc) if present else None
        except UserError:
            inventory = None  # what is left can't be read: as good as gone
        kept = {directory.index: _identity(directory) for directory in (inventory.directories if inventory else ())}
        is_other_driver = inventory is not None and inventory.driver_version != self._inventory.driver_version
        for index, reader in list(self._readers.items()):
            if is_other_driver or kept.get(index) != _identity(reader.directory):
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
            self._first.update(kept)
        self._processes.use(self._inventory.directories)

    def _is_shared_anew(self, present: list[DeviceDirectory]) -> bool:
        """Whether devices came or went that are not ours, or that have no file: our own are the same then."""
        share = DeviceShare(self._roots, present)
        known = self.instance.foreign_device_count, set(self.instance.fileless_device_indices)
        return (share.foreign_count, share.fileless) != known

    def _follow_metadata(self) -> None:
        """Takes in what the metadata service says, once; where the firmware doesn't name the type it does."""
        if self._is_told or self.metadata is None or not self.metadata.facts:
            return
        self._is_told = True
        facts: dict[str, Any] = dict(self.metadata.facts)
        told = facts.pop("instance_type", None)
        if told and "instance_type" in self.instance.inferred_fields:
            inferred = tuple(name for name in self.instance.inferred_fields if name != "instance_type")
            facts |= {"instance_type": told, "inferred_fields": inferred}
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
        # Memory shows also those whom we can't see, as in another container.
        is_attached = bool(pids) or any(reading.is_allocated for reading in readings)
        made = []
        for position, reading in enumerate(readings):
            index = device.index * per_device + position
            busy_seconds = self._time_in_use.measure(
                index, reading.time_in_use, reading.measured_at_seconds, pids, is_attached=is_attached
            )
            is_published = self._time_in_use.is_live or not is_attached
            owner = owner_of.get(index)
            made.append(
                NeuronCore(
                    index=index,
                    device_index=device.index,
                    index_on_device=position,
                    hbm_stack_index=position // per_stack,
                    owner_pid=None if owner is None else owner.pid,
                    busy_seconds_total=busy_seconds,
                    flop_total=reading.flop if is_published else None,
                    executions_total=executions_of(reading.inferences, reading.status) if is_published else None,
                    memory=reading.memory,
                    measured_at_seconds=reading.measured_at_seconds,
                    status=reading.status,
                    reset_requests_total=reading.reset_requests,
                    reset_failures_total=reading.reset_failures,
                    candidate_pids=candidates.get(device.index, ()) if owner is None else (),
                    inferred_fields=("owner_pid",) if owner is not None and owner.inferred_fields else (),
                )
            )
        return made

    def _device(self, device: Device, cores: list[NeuronCore]) -> Device:
        reader = self._readers[device.index]
        host_memory, ecc = reader.read_device()
        used: dict[int, int] = {}
        for core in cores:
            size_bytes = core.memory.total_bytes
            if size_bytes is not None:
                used[core.hbm_stack_index] = used.get(core.hbm_stack_index, 0) + size_bytes
        return replace(
            device,
            ecc=ecc,
            power=reader.read_power(),
            reported_health=reader.read_health(),
            host_memory=host_memory,
            hbm_stacks=tuple(replace(stack, used_bytes=used.get(stack.index)) for stack in device.hbm_stacks),
        )

    def _credited(self, processes: tuple[Process, ...], cores: list[NeuronCore]) -> tuple[Process, ...]:
        if not self._time_in_use.is_live:
            return processes
        return self._attribution.credited(processes, {core.index: core for core in cores}, self._pacing)

    def _warnings(self) -> tuple[str, ...]:
        vanished = sorted(self._first - self._readers.keys())
        warnings = [*self._inventory.warnings]
        if vanished:
            names = ", ".join(f"neuron{index}" for index in vanished)
            warnings.append(f"{names} vanished from the driver's tree; look at dmesg")
        warnings += self._layout.warnings(
            tuple((f"neuron{index}", reader.places) for index, reader in self._readers.items())
        )
        warnings += file_problems(reader.files for reader in self._readers.values())
        for reader in self._readers.values():
            self._went_back.update(dict.fromkeys(reader.went_back))
        if self._went_back:
            first = next(iter(self._went_back))
            warnings.append(
                f"{len(self._went_back)} counters went back since the start ({first}): somebody cleared them by a "
                "write; totals count from there"
            )
        if self.metadata is not None and self.metadata.warning:
            warnings.append(self.metadata.warning)
        warnings += (*self._time_in_use.warnings, *self._processes.warnings)
        left_out = len(warnings) - _MAX_WARNINGS
        return tuple(warnings[:_MAX_WARNINGS]) + ((f"and {left_out} warnings more",) if left_out > 0 else ())


def _identity(directory: DeviceDirectory) -> tuple[int, int, str]:
    return directory.index, directory.driver_index, directory.path


def _identities(directories: list[DeviceDirectory]) -> list[tuple[int, int, str]]:
    return [_identity(directory) for directory in directories]
