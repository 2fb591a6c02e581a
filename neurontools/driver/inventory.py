"""Reads the facts of a host that do not change, such as its type and devices. Takes snapshots without a daemon."""

from __future__ import annotations

import time

from neurontools.catalog.facts import is_server_id, required_value, ultraserver_node
from neurontools.driver.devices import (
    MAX_DEVICES,
    DeviceDirectory,
    DevicePlacement,
    DeviceShare,
    HostArchitecture,
    detect_architecture,
    list_device_directories,
    read_placements,
)
from neurontools.driver.environment import Roots
from neurontools.driver.processes import (
    UNKNOWN_HOST_MEMORY,
    OpenDevices,
    ProcessFiles,
    hidden_processes_warning,
    scan_device_owners,
)
from neurontools.driver.sysfs_files import (
    CONNECTED_DEVICES,
    CORE_COUNT,
    SERIAL_NUMBER,
    SERIAL_NUMBERS_SINCE,
    parse_count,
    parse_driver_version,
    read_bytes,
    read_text,
)
from neurontools.model import (
    Device,
    EccCounters,
    HbmStack,
    Instance,
    Process,
    Snapshot,
    SourceKind,
)

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Collection


_FLIPPED_NODES = (1, 3)
_FLIP = 6

# Maps the suffix of the file names node_id* and server_id* to the node count. Trainium3's names have no suffix.
_NODE_SUFFIXES: dict[str, int | None] = {"_4": 4, "_2": 2, "": None}


class Inventory:
    """The facts of a host that do not change. `warnings` reports unreadable files and wrong core counts.

    With `is_brief`, skips serial numbers and the check of core counts, because a list of devices shows neither.
    """

    def __init__(
        self, roots: Roots, directories: list[DeviceDirectory], *, lnc: int | None = None, is_brief: bool = False
    ) -> None:
        self.directories = directories
        self._is_brief = is_brief
        self.warnings: list[str] = []
        architecture = self.architecture = detect_architecture(roots, directories)
        version_text = read_text(roots.driver_version, 64)
        self.driver_version = parse_driver_version(version_text)
        if self.driver_version is None:
            self.warnings.append("the version of the Neuron driver can't be read; an old one is assumed")
        self._has_serial_numbers = (
            not is_brief
            and architecture.family.generation > 1
            and (self.driver_version is None or self.driver_version >= SERIAL_NUMBERS_SINCE)
        )
        self.instance = _instance(roots, architecture, directories, version_text if self.driver_version else None, lnc)
        self.is_flipped = is_flipped(architecture.family.name, {index for index, _ in _node_indices(roots)})
        driver_indices = [directory.driver_index for directory in directories]
        places = read_placements(roots, architecture.family, architecture.instance_type, driver_indices)
        self.devices = tuple(self._device(directory, places[directory.driver_index]) for directory in directories)

    def physical_core(self, directory: DeviceDirectory, position: int) -> int:
        """Returns the physical core (K of neuron_coreK) at a logical position of the device."""
        kind = self.architecture.instance_type
        at = flip_core_position(position) if self.is_flipped else position
        if kind is None or not kind.physical_core_map:
            return at
        row = kind.physical_core_map[directory.driver_index % len(kind.physical_core_map)]
        return row[at] if at < len(row) else at

    def _device(self, directory: DeviceDirectory, place: DevicePlacement) -> Device:
        instance = self.instance
        if not self._is_brief:
            self._check_cores(directory)
        links, is_concluded = self._links(directory)
        stack_bytes = instance.hbm_stack_bytes
        stacks = instance.device_memory_bytes // stack_bytes
        return Device(
            index=directory.index,
            bdf=place.bdf,
            cpu_affinity=place.cpu_affinity,
            numa_node=place.numa_node,
            connected_to=links,
            memory_bytes=instance.device_memory_bytes,
            hbm_stacks=tuple(HbmStack(stack, stack_bytes, None) for stack in range(stacks)),
            serial_number=_serial_number(directory) if self._has_serial_numbers else None,
            ecc=EccCounters(),
            host_memory=UNKNOWN_HOST_MEMORY,
            inferred_fields=(*place.inferred, *(("connected_to",) if is_concluded else ())),
        )

    def _check_cores(self, directory: DeviceDirectory) -> None:
        expected = self.instance.physical_cores_per_device
        try:
            count = parse_count(read_bytes(directory.file_path(CORE_COUNT), 32))
        except OSError:  # only root may read core_count before driver 2.28
            count = None
        found = len(directory.core_numbers()) if count is None else count
        if found != expected:
            self.warnings.append(
                f"neuron{directory.index} shows {found} cores, but {self.instance.instance_type} has {expected}"
            )

    def _links(self, directory: DeviceDirectory) -> tuple[tuple[int, ...], bool]:
        """Returns the neighbours of a device, and whether they come from the catalog instead of the driver."""
        try:
            raw = read_bytes(directory.file_path(CONNECTED_DEVICES), 256)
            # If the driver can't fit the neighbours into the file, the file is empty and has no newline.
            links = tuple(int(part) for part in raw.decode("ascii").split(",") if part.strip())
            if raw and all(0 <= link < MAX_DEVICES for link in links):
                return links, False
        except (OSError, ValueError):
            pass
        kind = self.architecture.instance_type
        if kind is not None and directory.driver_index < kind.device_count == len(self.directories):
            return kind.topology.connected_to[directory.driver_index], True
        self.warnings.append(
            f"neuron{directory.index}: connected_devices can't be read; run as root (before driver 2.28 only root may)"
        )
        return (), False


def read_inventory(roots: Roots, *, lnc: int | None = None, is_brief: bool = False) -> Inventory | None:
    """Returns the inventory, or None if the driver shows no device. Raises UserError if the family is unknown.

    `lnc` is the logical NeuronCore configuration of the host. None, or an unsupported value, means the default.
    """
    directories = list_device_directories(roots)
    if not directories:
        return None
    return Inventory(roots, directories, lnc=lnc, is_brief=is_brief)


def is_flipped(family_name: str, node_indices: Collection[int]) -> bool:
    """Whether the core numbers of a node are flipped: on nodes 1 and 3 of a Trainium2 UltraServer, they start at the
    other die of each device.
    """
    return family_name == "trainium2" and any(index in _FLIPPED_NODES for index in node_indices)


def flip_core_position(position: int) -> int:
    """Converts a logical core position to the position on a node with flipped core numbers (see `is_flipped`)."""
    return position ^ _FLIP


def _instance(
    roots: Roots,
    architecture: HostArchitecture,
    directories: list[DeviceDirectory],
    driver_version: str | None,
    lnc: int | None,
) -> Instance:
    family, kind = architecture.family, architecture.instance_type
    effective = lnc if lnc in family.lnc_supported else family.lnc_default
    facts = {
        "device_type": family.device_type,
        "device_version": family.device_version,
        "neuroncore_version": family.neuroncore_version(effective),
    }
    inferred = [name for name, fact in facts.items() if fact.value is not None and not fact.certain]
    nodes = _node_indices(roots)
    tag = read_text(f"{roots.dmi}/board_asset_tag", 64) or ""
    share = DeviceShare(roots, directories)
    expected = share.allowed_indices or {*range(kind.device_count if kind else 0), *share.fileless}
    if architecture.name_is_inferred:
        inferred.append("instance_type")
    if not family.device_memory_bytes.certain:
        inferred.append("device_memory_bytes")
    return Instance(
        instance_type=architecture.name,
        instance_id=tag if tag.startswith("i-") else None,
        device_count=max(kind.device_count if kind else 0, len(directories)),
        physical_cores_per_device=family.physical_cores_per_device,
        logical_neuroncore_config=effective,
        logical_neuroncore_configs=family.lnc_supported,
        device_memory_bytes=required_value(family.device_memory_bytes),
        hbm_stack_bytes=family.hbm_stack_bytes,
        topology=kind.topology.kind.value if kind else "single",
        device_type=facts["device_type"].value,
        device_version=facts["device_version"].value,
        neuroncore_version=facts["neuroncore_version"].value,
        driver_version=driver_version,
        ultraserver_id=_ultraserver_id(roots),
        # The elected position of this host in its UltraServer; None outside an UltraServer.
        ultraserver_node=ultraserver_node(kind.ultraserver if kind else None, *nodes[0]) if nodes else None,
        inferred_fields=tuple(inferred),
        expected_device_indices=tuple(sorted({*expected, *(directory.index for directory in directories)})),
        foreign_device_count=share.foreign_count,
        fileless_device_indices=tuple(sorted(share.fileless)),
    )


def _serial_number(directory: DeviceDirectory) -> str | None:
    """Returns the chip's serial number. None if unreadable: the driver's file then has only a newline."""
    text = read_text(directory.file_path(SERIAL_NUMBER), 64) or ""
    return text if len(text) == 16 and all(digit in "0123456789abcdef" for digit in text) else None


def _ultraserver_id(roots: Roots) -> str | None:
    """Returns the id of the host's UltraServer. None outside an UltraServer, or before its nodes elect an id."""
    for suffix in _NODE_SUFFIXES:
        text = read_text(f"{roots.device_class}/server_id{suffix}", 32) or ""
        if is_server_id(text):
            return text
    return None


def _node_indices(roots: Roots) -> list[tuple[int, int | None]]:
    """Returns a pair for each node_id file with a valid index: the node index of this host, and the node count.

    The suffix of the file name gives the node count; without a suffix, the count is None.
    """
    found = []
    for suffix, node_count in _NODE_SUFFIXES.items():
        text = read_text(f"{roots.device_class}/node_id{suffix}", 16) or ""
        if text.isascii() and text.isdigit() and (node_count is None or int(text) < node_count):
            found.append((int(text), node_count))
    return found


def read_host_snapshot(roots: Roots | None = None, *, has_serial_numbers: bool = False) -> Snapshot | None:
    """Takes a brief snapshot, for a list of the devices. Returns None if there are no devices.

    The snapshot has no cores, because their state needs counters. Its processes have only PID, command, runtime version
    and devices. Raises UserError if the family of the devices is unknown.
    """
    roots = roots or Roots()
    inventory = read_inventory(roots, is_brief=not has_serial_numbers)
    if inventory is None:
        return None
    owners, hidden = scan_device_owners(roots, inventory.directories)
    return Snapshot(
        sequence=0,
        taken_at_unix_seconds=time.time(),
        taken_at_seconds=time.monotonic(),
        interval_seconds=0.0,
        source=SourceKind.SYSFS,
        instance=inventory.instance,
        devices=inventory.devices,
        cores=(),
        processes=tuple(
            _process(roots.proc, devices, inventory.instance.logical_neuroncore_config) for devices in owners
        ),
        warnings=(*inventory.warnings, *((hidden_processes_warning(hidden),) if hidden else ())),
    )


def _process(proc: str, devices: OpenDevices, lnc: int) -> Process:
    files = ProcessFiles(proc, devices.pid)
    return Process(
        pid=devices.pid,
        uid=None,
        user=None,
        command=files.command(),
        tag=str(devices.pid),
        runtime_version=files.runtime_version(),
        started_at_unix_seconds=None,
        attached_at_unix_seconds=None,
        synthetic=False,
        logical_neuroncore_config=lnc,
        device_indices=devices.device_indices,
        executions=None,
        errors=None,
    )
