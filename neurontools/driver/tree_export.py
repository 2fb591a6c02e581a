"""Writes a snapshot as the driver's sysfs tree and /proc, so that software can be tried without hardware."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping

from neurontools import catalog
from neurontools.catalog import DeviceFamily
from neurontools.catalog.facts import simulated_server_id
from neurontools.driver import sysfs_files as sysfs
from neurontools.driver.environment import LNC, PROCESS_TAG, VISIBLE_CORES, Roots
from neurontools.driver.inventory import flip_core_position, is_flipped
from neurontools.driver.processes import SYNTHETIC, read_boot_time
from neurontools.driver.tree_writer import TreeWriter
from neurontools.model import Device, Instance, NeuronCore, PowerUtilization, Process, Snapshot
from neurontools.util.errors import UserError

DRIVER_VERSION = "2.30.2.0"
_SYSFS = "sys/devices/virtual/neuron_device"
_CLASS = "sys/class/neuron_device"
KERNEL_LOG = "dev/kmsg"
_DMI = "sys/devices/virtual/dmi/id"
_SUFFIX_BY_PLATFORM = {"pod": "_4", "pds": ""}
_NAMES_WITHOUT_SUFFIX = (2, 25)
_MODE_OF_FOUR_NODES = 1  # the value of ultraserver_mode that the driver calls X4


class ExportedTree:
    """A directory with `sys`, `proc` and `dev`. `update` writes new values, and `close` removes the directory.

    `driver_version` determines which files exist, their modes, and whether counters change while a process runs. Raises
    UserError if the directory can't be used, and ValueError for an invalid version or an instance type without a
    catalog entry.
    """

    def __init__(self, directory: str, snapshot: Snapshot, driver_version: str = DRIVER_VERSION) -> None:
        version = sysfs.parse_driver_version(driver_version)
        if version is None:
            raise ValueError(f"{driver_version!r} is not a driver version; give one such as {DRIVER_VERSION}")
        self._kind = catalog.load(snapshot.instance.instance_type)
        self._version = version
        node = snapshot.instance.ultraserver_node
        self._is_flipped = is_flipped(
            self._kind.family.name, () if node is None or node.index is None else (node.index,)
        )
        self._devices: dict[int, ExportedDevice] = {}
        self._processes: dict[int, ExportedProcess] = {}
        self._boot = read_boot_time("/proc") or time.time()
        self._writer = TreeWriter(directory)
        self.directory = self._writer.directory  # the absolute path
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
    def roots(self) -> Roots:
        base = self.directory
        return Roots(f"{base}/sys", f"{base}/proc", f"{base}/dev")

    def update(self, snapshot: Snapshot) -> None:
        """Writes the values of a snapshot. Adds and removes devices and processes."""
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
        write(KERNEL_LOG, "", 0o644)  # creates an empty kernel log, to which other code appends
        write("proc/stat", f"btime {int(self._boot)}\n", 0o444)
        write("proc/devices", f"Character devices:\n{DEVICE_MAJOR:3d} neuron\n\nBlock devices:\n", 0o444)

    def physical_core(self, device_index: int, position: int) -> int:
        """Returns the physical core (K of neuron_coreK) at a logical position of a device."""
        return self._core_map(device_index)[position]

    def _core_map(self, device_index: int) -> tuple[int, ...]:
        maps = self._kind.physical_core_map
        row = (maps[device_index] if maps else ()) or tuple(range(self._kind.family.physical_cores_per_device))
        return tuple(row[flip_core_position(position)] for position in range(len(row))) if self._is_flipped else row

    def _elected_place(self, instance: Instance) -> dict[str, tuple[int, str]]:
        """Returns the node index and the server id, keyed by the suffix of their file names (node_id, server_id).

        Empty outside an UltraServer, and for the platform "max", whose file names are not known.
        """
        node, ultraserver = instance.ultraserver_node, self._kind.ultraserver
        if node is None or node.index is None or instance.ultraserver_id is None or ultraserver is None:
            return {}
        suffix = _SUFFIX_BY_PLATFORM.get(ultraserver.kind)
        if suffix is None or (not suffix and self._version < _NAMES_WITHOUT_SUFFIX):
            return {}
        return {suffix: (node.index, simulated_server_id(instance.ultraserver_id))}

    def _add_device(self, device: Device) -> ExportedDevice:
        family, core_map = self._kind.family, self._core_map(device.index)
        added = ExportedDevice(self._writer, f"{_SYSFS}/neuron{device.index}", family, core_map, self._version)
        self._writer.link(f"{_CLASS}/neuron{device.index}", f"../../devices/virtual/neuron_device/neuron{device.index}")
        self._writer.link(f"{_SYSFS}/neuron{device.index}/subsystem", "../../../../class/neuron_device")
        self._writer.write(f"dev/neuron{device.index}", "", 0o666)
        # Omits an inferred address, which must not look real.
        if device.bdf is not None and "bdf" not in device.inferred_fields:
            pci = f"sys/bus/pci/devices/{device.bdf}"
            self._writer.write(f"{pci}/vendor", f"0x{family.pci.vendor_id}\n", 0o444)
            self._writer.write(f"{pci}/device", f"0x{family.pci.device_ids[0]}\n", 0o444)
            for name, value in (("numa_node", device.numa_node), ("local_cpulist", device.cpu_affinity)):
                if value is not None:
                    self._writer.write(f"{pci}/{name}", f"{value}\n", 0o444)
        self._devices[device.index] = added  # set last: after a failure such as a full disk, the next update retries
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
                exported = self._processes[process.pid] = ExportedProcess(self._writer, process)
            exported.update(process, self._boot)


DEVICE_MAJOR = 240  # Linux reserves the major numbers 240 to 254 for local use
# Host memory that the driver uses for each core of an idle device: DMA rings, and on core 0 tables for processes too.
_CORE_HOST_BYTES = 266_240
_FIRST_CORE_HOST_BYTES = 4_530_176


class ExportedDevice:
    """Writes the directory of a device. `core_map[position]` is the physical core at a logical position."""

    def __init__(
        self,
        writer: TreeWriter,
        directory: str,
        family: DeviceFamily,
        core_map: tuple[int, ...],
        driver_version: tuple[int, ...],
    ) -> None:
        self._writer = writer
        self._directory = directory
        files = sysfs.files_for_driver(sysfs.DEVICE_FILES, driver_version, family.generation)
        self._files = {file.path: file for file in files}
        self._family = family
        self._counters = export_counters(writer, directory, files)
        self._cores = [
            ExportedCore(
                writer,
                f"{directory}/neuron_core{physical}",
                family,
                driver_version,
                _CORE_HOST_BYTES if physical else _FIRST_CORE_HOST_BYTES,
            )
            for physical in core_map
        ]
        self._before: Device | None = None

    def update(self, device: Device, cores: Mapping[int, NeuronCore], owners: Mapping[int, Process]) -> None:
        """Updates the device's files.

        `cores` is keyed by logical position. `owners` maps the index of a process's first core to the process.
        """
        if device is not self._before:
            self._before = device
            for path, text in _identity_texts(device, self._family).items():
                self._write(path, text)
            for name, field in sysfs.ECC_COUNTERS.items():
                self._write(f"stats/hardware/{name}", f"{getattr(device.ecc, field) or 0}\n")
            for category in sysfs.HOST_MEMORY_CATEGORIES:
                counter = self._counters.get(sysfs.host_memory_path(category).rpartition("/")[0])
                if counter is not None:
                    counter.set(getattr(device.host_memory, f"{category}_bytes") or 0)
            self._write(sysfs.POWER_UTILIZATION, format_power(device.power))
        for position, exported in enumerate(self._cores):
            core = cores.get(position)
            if core is not None:
                exported.update(core, owners.get(core.index))

    def _write(self, path: str, text: str) -> None:
        file: sysfs.SysfsFile | None = self._files.get(path)
        if file is not None:
            self._writer.write(f"{self._directory}/{path}", text, file.mode)


def format_power(power: PowerUtilization | None) -> str:
    """Returns the text of the power file: status, Unix seconds, and percentages of the device's maximum power."""
    if power is None:
        return "POWER_STATUS_NO_DATA,0,0.00,0.00,0.00\n"
    ratios = (power.minimum_ratio, power.maximum_ratio, power.average_ratio)
    percentages = ",".join(f"{100 * ratio if math.isfinite(ratio) else 0.0:.2f}" for ratio in ratios)
    return f"POWER_STATUS_VALID,{int(power.sampled_at_unix_seconds)},{percentages}\n"


def _identity_texts(device: Device, family: DeviceFamily) -> dict[str, str]:
    return {
        sysfs.CONNECTED_DEVICES: ", ".join(map(str, device.connected_to)) + "\n",
        sysfs.CORE_COUNT: str(family.physical_cores_per_device),
        "reset": "1\n",
        sysfs.DEVICE_NUMBER: f"{DEVICE_MAJOR}:{device.index}\n",
        "uevent": f"MAJOR={DEVICE_MAJOR}\nMINOR={device.index}\nDEVNAME=neuron{device.index}\n",
        "info/notify_delay": "-1\n",
        sysfs.SERIAL_NUMBER: f"{device.serial_number or ''}\n",
        sysfs.ARCH_TYPE: f"{family.sysfs.arch_type_device}\n",
        sysfs.FIRST_ARCH_TYPE: f"{family.sysfs.arch_type_device.removeprefix('ND')}\n",
        sysfs.INSTANCE_TYPE: f"{family.sysfs.instance_type}\n",
        sysfs.DEVICE_NAME: f"{family.sysfs.device_name}\n",
        sysfs.UNHEALTHY_COMPONENTS: "\n",
    }


MICROSECONDS = 1e6
PE_COUNTERS = "stats/tensor_engine/pe_cntrs"
_PE_TEXT = "xrow_grp,mm_active,wl_active,idle\n" + "".join(f"{row},0,0,0\n" for row in range(4))

# Maps execution outcomes other than success to the driver's counters.
OUTCOMES = {
    "completed_with_err_total": "execute_completed_with_error",
    "completed_with_num_err_total": "execute_completed_with_num_error",
    "timed_out_total": "timeout",
    "incorrect_input_total": "exec_bad_input",
    "failed_to_queue_total": "execute_failed_to_queue",
}
# Maps errors of a process to the nearest counters of the driver, which has no counter for transient errors.
# OUTCOMES has the numerical errors, because they are an execution outcome.
ERRORS = {
    "generic_total": "generic_error",
    "model_total": "unsupported_neff_version",
    "runtime_total": "resource_error",
    "hardware_total": "hw_error",
}

# Counters that injected faults increase. Their values come from the core's status, not from process reports.
_OF_HARDWARE = tuple(
    name for name in sysfs.STATUS_COUNTERS if name.startswith(("hw_", "oob_", "execute_sw_")) and name != "hw_error"
)


class ExportedCounter:
    """Writes the files of one counter: `total`, `present` (size of the last change) and, for memory, `peak`."""

    __slots__ = ("_mode", "_path", "_peak", "_total", "_writer")

    def __init__(self, writer: TreeWriter, path: str, total: int, mode: int, *, has_peak: bool) -> None:
        self._writer = writer
        self._path = path
        self._total = total
        self._mode = mode
        self._peak = total if has_peak else None
        self._write("total", total)
        self._write("present", total)
        if has_peak:
            self._write("peak", total)

    def set(self, total: int) -> None:
        if total == self._total:
            return
        self._write("total", total)
        self._write("present", abs(total - self._total))
        self._total = total
        if self._peak is not None and total > self._peak:
            self._peak = total
            self._write("peak", total)

    def _write(self, value: str, number: int) -> None:
        self._writer.write(f"{self._path}/{value}", f"{number}\n", self._mode)


def export_counters(
    writer: TreeWriter, directory: str, files: Iterable[sysfs.SysfsFile], initial: Mapping[str, int] | None = None
) -> dict[str, ExportedCounter]:
    """Writes the counters that `files` contains and returns them by directory. `initial` has their start values."""
    modes = {file.path: file.mode for file in files}
    counters = {}
    for path, mode in modes.items():
        at, _, value = path.rpartition("/")
        if value == "total":
            total = (initial or {}).get(at, 0)
            counters[at] = ExportedCounter(writer, f"{directory}/{at}", total, mode, has_peak=f"{at}/peak" in modes)
    return counters


class ExportedCore:
    """Writes the directory of a core. Before driver 2.30, runtime counters change only when the core's process ends."""

    def __init__(
        self,
        writer: TreeWriter,
        directory: str,
        family: DeviceFamily,
        driver_version: tuple[int, ...],
        host_memory_bytes: int,
    ) -> None:
        self._is_live = driver_version >= sysfs.LIVE_COUNTERS_SINCE
        self._before: NeuronCore | None = None
        self._version = driver_version
        self._kept: dict[str, int] = {}
        files = sysfs.files_for_driver(sysfs.CORE_FILES, driver_version, family.generation)
        resets = sysfs.path_in_version(sysfs.other_info_path("reset_req_count"), driver_version).rpartition("/")[0]
        initial = {resets: 1, "stats/memory_usage/host_mem": host_memory_bytes}
        self._counters = export_counters(writer, directory, files, initial)
        texts = {sysfs.ARCH_TYPE: f"{family.sysfs.arch_type_core}\n", PE_COUNTERS: _PE_TEXT}
        for file in files:
            if file.path in texts:
                writer.write(f"{directory}/{file.path}", texts[file.path], file.mode)

    def update(self, core: NeuronCore, owner: Process | None) -> None:
        """Updates the core's files. `owner` is the process whose first core is this core."""
        if core is not self._before:
            self._memory(core)
            self._before = core
        if self._is_live or core.owner_pid is None:
            self._counts(core, owner)

    def _memory(self, core: NeuronCore) -> None:
        total = 0
        for category in sysfs.DEVICE_MEMORY_CATEGORIES:
            size_bytes = getattr(core.memory, f"{category}_bytes") or 0
            total += size_bytes
            self._set(sysfs.device_memory_path(category), size_bytes)
        self._set(sysfs.core_memory_path("device_mem"), total)

    def _counts(self, core: NeuronCore, owner: Process | None) -> None:
        failed = 0
        for field, name in OUTCOMES.items():
            failed += self._count(name, None if owner is None else getattr(owner.executions, field, None))
        # `hw_error` counts only hardware errors of kinds that have no counter of their own.
        own = 0
        for name in _OF_HARDWARE if core.status is not None else ():
            count = getattr(core.status, f"{name}_total") or 0
            self._set(sysfs.status_path(name), count)
            own += count if sysfs.status_path(name).rpartition("/")[0] in self._counters else 0
        for field, name in ERRORS.items():
            count = None if owner is None else getattr(owner.errors, field, None)
            self._count(name, max(0, count - own) if count is not None and name == "hw_error" else count)
        executions = core.executions_total or 0
        succeeded = max(0, executions - failed)
        self._set(sysfs.status_path("success"), succeeded)
        self._set(sysfs.other_info_path(sysfs.INFERENCE_COUNT), succeeded)
        self._set(sysfs.other_info_path(sysfs.FLOP_COUNT), core.flop_total or 0)
        busy = round((core.busy_seconds_total or 0.0) * MICROSECONDS)
        self._set(sysfs.other_info_path(sysfs.TIME_IN_USE), busy)

    def _count(self, name: str, now: int | None) -> int:
        """Sets a status counter and returns its value.

        The counter never decreases, although the counts of a new owner start at zero.
        """
        count = self._kept[name] = max(self._kept.get(name, 0), now or 0)
        self._set(sysfs.path_in_version(sysfs.status_path(name), self._version), count)
        return count

    def _set(self, path: str, value: int) -> None:
        counter = self._counters.get(path.rpartition("/")[0])
        if counter is not None:
            counter.set(value)


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FIRST_DESCRIPTOR = 3


class ExportedProcess:
    """Writes the /proc directory of a process, with descriptor links to its device files."""

    def __init__(self, writer: TreeWriter, process: Process) -> None:
        self._writer = writer
        self._directory = f"proc/{process.pid}"
        self._write_identity(process)

    def update(self, process: Process, boot_unix_seconds: float) -> None:
        for position, index in enumerate(process.device_indices):
            self._writer.link(f"{self._directory}/fd/{_FIRST_DESCRIPTOR + position}", f"/dev/neuron{index}")
        started = max(0.0, (process.started_at_unix_seconds or boot_unix_seconds) - boot_unix_seconds)
        fields = ["0"] * 49
        fields[0] = "S"
        fields[11] = str(round((process.cpu_user_seconds_total or 0.0) * _TICKS_PER_SECOND))
        fields[12] = str(round((process.cpu_system_seconds_total or 0.0) * _TICKS_PER_SECOND))
        fields[19] = str(round(started * _TICKS_PER_SECOND))
        fields[21] = str((process.resident_bytes or 0) // _PAGE_BYTES)
        self._writer.write(f"{self._directory}/stat", f"{process.pid} (process) {' '.join(fields)}\n", 0o444)

    def close(self) -> None:
        self._writer.remove(self._directory)

    def _write_identity(self, process: Process) -> None:
        environment = {PROCESS_TAG: process.tag, LNC: str(process.logical_neuroncore_config)}
        if process.synthetic:
            environment[SYNTHETIC] = "1"
        if process.neuroncore_indices:
            cores = process.neuroncore_indices
            environment[VISIBLE_CORES] = f"{cores[0]}-{cores[-1]}"
        variables = "".join(f"{name}={_clean(value)}\0" for name, value in environment.items())
        library = (
            f"7f0000000000-7f0000400000 r-xp 00000000 00:00 0 /opt/aws/neuron/lib/libnrt.so.{process.runtime_version}\n"
        )
        write, directory, uid = self._writer.write, self._directory, process.uid if process.uid is not None else 0
        write(
            f"{directory}/cmdline", _clean(process.command).replace(" ", "\0") + "\0" if process.command else "", 0o444
        )
        write(f"{directory}/environ", variables, 0o400)
        write(f"{directory}/maps", library if process.runtime_version is not None else "", 0o444)
        write(f"{directory}/status", f"Name:\tprocess\nPid:\t{process.pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n", 0o444)


def _clean(text: str) -> str:
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
