"""The driver's tree made from a snapshot, so that software that reads it can be tried without hardware."""

from __future__ import annotations

import time

from neurontools import catalog
from neurontools.catalog.ultraserver import simulated_server_id
from neurontools.driver.sysfs.exported_device import DEVICE_MAJOR, ExportedDevice
from neurontools.driver.sysfs.exported_process import ExportedProcess
from neurontools.driver.sysfs.file_table import parsed_version
from neurontools.driver.sysfs.inventory import flipped, is_flipped
from neurontools.driver.sysfs.process_files import boot_unix_seconds
from neurontools.driver.sysfs.roots import Roots
from neurontools.driver.sysfs.tree_writer import TreeWriter
from neurontools.model import Device, Instance, NeuronCore, Process, Snapshot
from neurontools.util.errors import UserError

DRIVER_VERSION = "2.30.2.0"
_SYSFS = "sys/devices/virtual/neuron_device"
_CLASS = "sys/class/neuron_device"
KERNEL_LOG = "dev/kmsg"
_DMI = "sys/devices/virtual/dmi/id"
_SUFFIX_BY_PLATFORM = {"pod": "_4", "pds": ""}
_NAMES_WITHOUT_SUFFIX = (2, 25)
_MODE_OF_FOUR_NODES = 1  # X4 of the driver's modes


class ExportedTree:
    """A directory with `sys`, `proc` and `dev` that follows the snapshots it is given; `close` removes it.

    `driver_version` decides files, modes and whether counters move while a process runs. UserError when the directory
    can't be had; ValueError for a version that is none, or a snapshot of an instance type without a catalog entry.
    """

    def __init__(self, directory: str, snapshot: Snapshot, driver_version: str = DRIVER_VERSION) -> None:
        version = parsed_version(driver_version)
        if version is None:
            raise ValueError(f"{driver_version!r} is no driver version; give one such as {DRIVER_VERSION}")
        self._kind = catalog.load(snapshot.instance.instance_type)
        self._version = version
        node = snapshot.instance.ultraserver_node
        self._is_flipped = is_flipped(
            self._kind.family.name, () if node is None or node.index is None else (node.index,)
        )
        self._devices: dict[int, ExportedDevice] = {}
        self._processes: dict[int, ExportedProcess] = {}
        self._boot = boot_unix_seconds("/proc") or time.time()
        self._writer = TreeWriter(directory)
        try:
            self._write_host(snapshot, driver_version)
            self.update(snapshot)
        except OSError as error:
            self._writer.close()
            raise UserError(
                f"can't write a sysfs tree to {directory}: {error.strerror}; give a directory with room for it"
            ) from None
        except BaseException:
            self._writer.close()
            raise

    @property
    def directory(self) -> str:
        """Where the tree is."""
        return self._writer.directory

    @property
    def roots(self) -> Roots:
        """The roots for a reader."""
        base = self.directory
        return Roots(f"{base}/sys", f"{base}/proc", f"{base}/dev")

    def update(self, snapshot: Snapshot) -> None:
        """Brings the tree up to this snapshot. Devices may come and go."""
        cores: dict[int, dict[int, NeuronCore]] = {}
        for core in snapshot.cores:
            cores.setdefault(core.device_index, {})[core.index_on_device] = core
        owners = {process.core_indices[0]: process for process in snapshot.processes if process.core_indices}
        self._drop_devices({device.index for device in snapshot.devices})
        for device in snapshot.devices:
            exported = self._devices.get(device.index) or self._add_device(device)
            exported.update(device, cores.get(device.index, {}), owners)
        self._update_processes(snapshot.processes)

    def close(self) -> None:
        """Removes the tree."""
        self._writer.close()

    def __enter__(self) -> ExportedTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_host(self, snapshot: Snapshot, driver_version: str) -> None:
        write, instance = self._writer.write, snapshot.instance
        place = self._elected_place(instance)
        for suffix in ("_2", "_4", *([""] if "" in place else [])):
            node_index, server_id = place.get(suffix, (-1, f"{0:016x}"))
            write(f"{_CLASS}/node_id{suffix}", f"{node_index}\n", 0o444)
            write(f"{_CLASS}/server_id{suffix}", f"{server_id}\n", 0o444)
        write(f"{_CLASS}/ultraserver_mode", f"{_MODE_OF_FOUR_NODES if place else ''}\n", 0o444)
        write("sys/module/neuron/version", f"{driver_version}\n", 0o444)
        write(f"{_DMI}/product_name", f"{instance.instance_type}\n", 0o444)
        write(f"{_DMI}/sys_vendor", "Amazon EC2\n", 0o444)
        write(f"{_DMI}/board_asset_tag", f"{instance.instance_id or ''}\n", 0o444)
        self._writer.link("sys/class/dmi/id", "../../devices/virtual/dmi/id")
        write(KERNEL_LOG, "", 0o644)  # records are added to it
        write("proc/stat", f"btime {int(self._boot)}\n", 0o444)
        write("proc/devices", f"Character devices:\n{DEVICE_MAJOR:3d} neuron\n\nBlock devices:\n", 0o444)

    def physical_core(self, device_index: int, position: int) -> int:
        """The physical core, K of neuron_coreK, at a logical position of a device."""
        return self._core_map(device_index)[position]

    def _core_map(self, device_index: int) -> tuple[int, ...]:
        maps = self._kind.physical_core_map
        row = (maps[device_index] if maps else ()) or tuple(range(self._kind.family.physical_cores_per_device))
        return tuple(row[flipped(position)] for position in range(len(row))) if self._is_flipped else row

    def _elected_place(self, instance: Instance) -> dict[str, tuple[int, str]]:
        """Node index and server id by what the names of their files end in; nothing outside an UltraServer.

        Which files a node of the platform "max" has is not known, so it has none.
        """
        node, ultraserver = instance.ultraserver_node, self._kind.ultraserver
        if node is None or node.index is None or instance.ultraserver_id is None or ultraserver is None:
            return {}
        suffix = _SUFFIX_BY_PLATFORM.get(ultraserver.kind)
        if suffix is None or (not suffix and self._version < _NAMES_WITHOUT_SUFFIX):
            return {}
        return {suffix: (node.index, simulated_server_id(instance.ultraserver_id))}

    def _add_device(self, device: Device) -> ExportedDevice:
        family = self._kind.family
        added = ExportedDevice(
            self._writer,
            f"{_SYSFS}/neuron{device.index}",
            family,
            self._core_map(device.index),
            self._version,
        )
        self._writer.link(f"{_CLASS}/neuron{device.index}", f"../../devices/virtual/neuron_device/neuron{device.index}")
        self._writer.link(f"{_SYSFS}/neuron{device.index}/subsystem", "../../../../class/neuron_device")
        self._writer.write(f"dev/neuron{device.index}", "", 0o666)
        if device.bdf is not None and "bdf" not in device.inferred_fields:  # an invented address must not pass as real
            pci = f"sys/bus/pci/devices/{device.bdf}"
            self._writer.write(f"{pci}/vendor", f"0x{family.pci.vendor_id}\n", 0o444)
            self._writer.write(f"{pci}/device", f"0x{family.pci.device_ids[0]}\n", 0o444)
            for name, value in (("numa_node", device.numa_node), ("local_cpulist", device.cpu_affinity)):
                if value is not None:
                    self._writer.write(f"{pci}/{name}", f"{value}\n", 0o444)
        self._devices[device.index] = added  # not before it is whole: a full disk may have room later
        return added

    def _drop_devices(self, present: set[int]) -> None:
        for index in self._devices.keys() - present:
            del self._devices[index]
            for path in (f"{_CLASS}/neuron{index}", f"{_SYSFS}/neuron{index}", f"dev/neuron{index}"):
                self._writer.remove(path)

    def _update_processes(self, processes: tuple[Process, ...]) -> None:
        for pid in self._processes.keys() - {process.pid for process in processes}:
            self._processes.pop(pid).close()
        for process in processes:
            exported = self._processes.get(process.pid)
            if exported is None:
                exported = self._processes[process.pid] = ExportedProcess(self._writer, "proc", process)
            exported.update(process, self._boot)
