"""The files of one device in a tree that we write."""

from __future__ import annotations

import math
from collections.abc import Mapping

from neurontools.catalog import DeviceFamily
from neurontools.driver.sysfs import file_table
from neurontools.driver.sysfs.exported_core import ExportedCore, counters
from neurontools.driver.sysfs.file_table import DEVICE_FILES, POWER, File, files_of
from neurontools.driver.sysfs.tree_writer import TreeWriter
from neurontools.model import Device, NeuronCore, PowerUtilization, Process

DEVICE_MAJOR = 240  # the kernel leaves 240 to 254 to local use
# What an idle driver holds on the host for each core: rings, and for core 0 the datastores of processes.
_CORE_HOST_BYTES = 266_240
_FIRST_CORE_HOST_BYTES = 4_530_176


class ExportedDevice:
    """One device's directory with its cores'. `core_map[position]` is the physical core at a logical position."""

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
        files = files_of(DEVICE_FILES, driver_version, family.generation)
        self._files = {file.path: file for file in files}
        self._family = family
        self._counters = counters(writer, directory, files)
        self._cores = [
            ExportedCore(
                writer,
                f"{directory}/neuron_core{physical}",
                family.sysfs.arch_type_core,
                driver_version,
                family.generation,
                _CORE_HOST_BYTES if physical else _FIRST_CORE_HOST_BYTES,
            )
            for physical in core_map
        ]
        self._before: Device | None = None

    def update(self, device: Device, cores: Mapping[int, NeuronCore], owners: Mapping[int, Process]) -> None:
        """Brings the files up to this state. `cores` by logical position; `owners` by index of their first core."""
        if device is not self._before:
            self._before = device
            for path, text in _identity_texts(device, self._family).items():
                self._write(path, text)
            for name, field in file_table.ECC.items():
                self._write(f"stats/hardware/{name}", f"{getattr(device.ecc, field) or 0}\n")
            for category in file_table.HOST_MEMORY:
                counter = self._counters.get(file_table.host_memory_path(category).rpartition("/")[0])
                if counter is not None:
                    counter.set(getattr(device.host_memory, f"{category}_bytes") or 0)
            self._write(file_table.POWER_UTILIZATION, power_text(device.power))
        for position, exported in enumerate(self._cores):
            core = cores.get(position)
            if core is not None:
                exported.update(core, owners.get(core.index))

    def _write(self, path: str, text: str) -> None:
        file: File | None = self._files.get(path)
        if file is not None:
            self._writer.write(f"{self._directory}/{path}", text, file.mode)


def power_text(power: PowerUtilization | None) -> str:
    """The power file: status, second, and percentages of the device's maximum."""
    if power is None:
        return POWER.format("POWER_STATUS_NO_DATA", 0, 0.0, 0.0, 0.0)
    ratios = (power.minimum_ratio, power.maximum_ratio, power.average_ratio)
    percentages = [100 * ratio if math.isfinite(ratio) else 0.0 for ratio in ratios]
    return POWER.format("POWER_STATUS_VALID", int(power.sampled_at_unix_seconds), *percentages)


def _identity_texts(device: Device, family: DeviceFamily) -> dict[str, str]:
    sysfs = family.sysfs
    return {
        file_table.CONNECTED_DEVICES: ", ".join(map(str, device.connected_to)) + "\n",
        file_table.CORE_COUNT: str(family.physical_cores_per_device),
        "reset": "1\n",
        file_table.DEVICE_NUMBER: f"{DEVICE_MAJOR}:{device.index}\n",
        "uevent": f"MAJOR={DEVICE_MAJOR}\nMINOR={device.index}\nDEVNAME=neuron{device.index}\n",
        "info/notify_delay": "-1\n",
        file_table.SERIAL_NUMBER: f"{device.serial_number or ''}\n",
        file_table.ARCH_TYPE: f"{sysfs.arch_type_device}\n",
        file_table.FIRST_ARCH_TYPE: f"{sysfs.arch_type_device.removeprefix('ND')}\n",
        file_table.INSTANCE_TYPE: f"{sysfs.instance_type}\n",
        file_table.DEVICE_NAME: f"{sysfs.device_name}\n",
        file_table.UNHEALTHY_COMPONENTS: "\n",
    }
