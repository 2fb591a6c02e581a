"""The output of `neuron-ls`: devices and their processes as a table and as JSON.

The table marks inferred values as `VALUE (inferred)`, and prints `-` for unknown values. JSON has no such mark:
there, inferred and unknown values are empty strings, and all other values were read from the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from neurontools.model import Device, Instance, Process, Snapshot
from neurontools.util.formats import Column, JsonValue, ascii_table, encode_go_json
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.units import UNKNOWN, memory_size_text
from neurontools.views.topology_picture import topology_picture

_NOT_APPLICABLE = "NA"
_COMMAND_CHARACTERS = 40
_WIDE_COMMAND_CHARACTERS = 80


class NoSuchDevice(LookupError):
    """A requested device does not exist on this host. The message names it and the existing devices."""


@dataclass(frozen=True, slots=True)
class _DeviceListRow:
    """A line of the device table: a device and one of its processes, or None for a device without processes."""

    index: int
    device: Device | None  # None: the device is missing
    process: Process | None


def device_list_table(
    snapshot: Snapshot,
    *,
    wide: bool = False,
    all_processes: bool = False,
    topology: bool = False,
    logical_neuroncore_config: int | None = None,
    device_indices: Iterable[int] = (),
) -> str:
    """Returns the text output of neuron-ls: header lines, device table and, with `topology`, the NeuronLink diagram.

    `wide` cuts commands at 80 characters instead of 40. `all_processes` adds processes that don't use the Neuron
    runtime. Ignores an LNC that the hardware does not support. Empty `device_indices` means all devices. Raises
    NoSuchDevice if one of `device_indices` does not exist.
    """
    instance = snapshot.instance
    known = snapshot.devices_by_index
    chosen = _select_indices(known, device_indices)
    lnc = _effective_lnc(instance, logical_neuroncore_config)
    processes = _processes_by_device(snapshot, all_processes)
    groups = [
        [_DeviceListRow(index, known[index], process) for process in processes.get(index, (None,))] for index in chosen
    ]
    shown = [row.process for group in groups for row in group if row.process is not None]
    columns = _shown_columns(
        instance.physical_cores_per_device // lnc,
        links=any(device.connected_to for device in snapshot.devices),
        processes=bool(shown),
        commands=any(process.command for process in shown),
        command_characters=_WIDE_COMMAND_CHARACTERS if wide else _COMMAND_CHARACTERS,
    )
    topology_text = f"\n\n{topology_picture(snapshot, lnc)}" if topology else ""
    header = f"instance-type: {escape_controls(instance.instance_type)}\n"
    header += f"instance-id: {_or_unknown(instance.instance_id)}\n"
    if _has_lnc(instance):
        header += f"logical-neuroncore-config: {lnc}\n"
    return header + ascii_table(columns, groups) + topology_text


def device_list_json(
    snapshot: Snapshot,
    *,
    all_processes: bool = False,
    logical_neuroncore_config: int | None = None,
    device_indices: Iterable[int] = (),
) -> str:
    """Returns the devices as a JSON array without a final newline. As in AWS's format, missing devices have no entry.

    See `device_list_table` for the arguments and for NoSuchDevice.
    """
    of_instance = _instance_object(snapshot.instance)
    devices = _device_objects(snapshot, all_processes, logical_neuroncore_config, device_indices)
    return encode_go_json([of_instance | device for device in devices])


def device_list_object(
    snapshot: Snapshot,
    *,
    all_processes: bool = False,
    logical_neuroncore_config: int | None = None,
    device_indices: Iterable[int] = (),
) -> str:
    """Returns the JSON object of `--output-format json`: the instance, its UltraServer if known, and the devices.

    The key `missing_neuron_devices` is ours, and is there only while devices are missing.

    See `device_list_table` for the arguments and for NoSuchDevice. AWS announced top-level fields for SDK 2.34
    (https://awsdocs-neuron.readthedocs-hosted.com, announcements of 2.33), but has not published all their names.
    """
    instance = snapshot.instance
    devices = _device_objects(snapshot, all_processes, logical_neuroncore_config, device_indices)
    ultraserver_id = _value_unless_inferred(instance, "ultraserver_id")
    missing = snapshot.missing_device_indices
    return encode_go_json(
        {
            **_instance_object(instance),
            **({"ultraserver_id": ultraserver_id} if ultraserver_id else {}),
            "neuron_devices": devices,
            **({"missing_neuron_devices": missing} if missing else {}),
        }
    )


def _device_objects(
    snapshot: Snapshot, all_processes: bool, logical_neuroncore_config: int | None, device_indices: Iterable[int]
) -> list[dict[str, JsonValue]]:
    lnc = _effective_lnc(snapshot.instance, logical_neuroncore_config)
    processes = _processes_by_device(snapshot, all_processes)
    present = {device.index: device for device in snapshot.devices}
    return [
        _device_object(snapshot.instance, present[index], lnc, processes.get(index, ()))
        for index in _select_indices(present, device_indices)
    ]


def _select_indices(known: Collection[int], indices: Iterable[int]) -> list[int]:
    """Returns the known indices that are in `indices`; all if `indices` is empty. Raises NoSuchDevice."""
    chosen = set(indices)
    unknown = chosen.difference(known)
    if unknown:
        unknown_text = ", ".join(map(str, sorted(unknown)))
        raise NoSuchDevice(
            f"no device {unknown_text} on this host; its devices: {', '.join(map(str, known)) or 'none'}"
        )
    return [index for index in known if not chosen or index in chosen]


def _effective_lnc(instance: Instance, requested: int | None) -> int:
    return requested if requested in instance.logical_neuroncore_configs else instance.logical_neuroncore_config


def _has_lnc(instance: Instance) -> bool:
    return len(instance.logical_neuroncore_configs) > 1


def _processes_by_device(snapshot: Snapshot, all_processes: bool) -> dict[int, list[Process]]:
    by_device: dict[int, list[Process]] = {}
    for process in snapshot.processes:
        if all_processes or process.runtime_version is not None:
            for index in process.device_indices:
                by_device.setdefault(index, []).append(process)
    return by_device


def _shown_columns(
    cores_per_device: int, *, links: bool, processes: bool, commands: bool, command_characters: int
) -> list[Column[_DeviceListRow]]:
    """Returns the columns of the device table that have values, in the order of AWS's neuron-ls."""

    def core_ids(device: Device) -> str:
        first = device.index * cores_per_device
        return str(first) if cores_per_device == 1 else f"{first}-{first + cores_per_device - 1}"

    def connected(device: Device) -> str:
        return _mark_inferred(device, "connected_to", ", ".join(map(str, device.connected_to)))

    def of_process(title: tuple[str, ...], read: Callable[[Process], str]) -> Column[_DeviceListRow]:
        return Column(title, lambda row: _NOT_APPLICABLE if row.process is None else read(row.process))

    def of_device(title: tuple[str, ...], read: Callable[[Device], str]) -> Column[_DeviceListRow]:
        return Column(title, lambda row: UNKNOWN if row.device is None else read(row.device), once=True)

    def index_text(row: _DeviceListRow) -> str:
        return f"{row.index}{' (missing)' if row.device is None else ''}"

    columns = (
        (True, Column(("NEURON", "DEVICE"), index_text, once=True)),
        (True, of_device(("NEURON", "CORES"), lambda _: str(cores_per_device))),
        (True, of_device(("NEURON", "CORE IDS"), core_ids)),
        (True, of_device(("NEURON", "MEMORY"), _memory_text)),
        (links, of_device(("CONNECTED", "DEVICES"), connected)),
        (True, of_device(("PCI", "BDF"), lambda device: _mark_inferred(device, "bdf", device.bdf))),
        (processes, of_process(("PID", ""), lambda process: str(process.pid))),
        (
            True,
            of_device(("CPU", "AFFINITY"), lambda device: _mark_inferred(device, "cpu_affinity", device.cpu_affinity)),
        ),
        (True, of_device(("NUMA", "NODE"), lambda device: _mark_inferred(device, "numa_node", device.numa_node))),
        (commands, of_process(("COMMAND", ""), lambda process: excerpt(process.command, command_characters))),
        (processes, of_process(("RUNTIME", "VERSION"), lambda process: escape_controls(_runtime_version(process)))),
    )
    return [column for is_shown, column in columns if is_shown]


def _memory_text(device: Device) -> str:
    return _mark_inferred(device, "memory_bytes", memory_size_text(device.memory_bytes))


def _mark_inferred(device: Device, field: str, text: str | None) -> str:
    shown = _or_unknown(text)
    return f"{shown} (inferred)" if text and field in device.inferred_fields else shown


def _or_unknown(text: str | None) -> str:
    return UNKNOWN if text is None else escape_controls(text)


def _runtime_version(process: Process) -> str:
    return _NOT_APPLICABLE if process.runtime_version is None else process.runtime_version


_NO_NUMA_NODE = "-1"  # the kernel's value for "no NUMA node"; parsers expect a number in this string


def _instance_object(instance: Instance) -> dict[str, JsonValue]:
    return {"instance_type": instance.instance_type, "instance_id": _value_unless_inferred(instance, "instance_id")}


def _device_object(instance: Instance, device: Device, lnc: int, processes: Sequence[Process]) -> dict[str, JsonValue]:
    """Returns the JSON object of a device. Keys, their order and the type of numa_node match AWS's neuron-ls."""
    cores_per_device = instance.physical_cores_per_device // lnc
    first_core = device.index * cores_per_device
    return {
        "neuron_device": device.index,
        "bdf": _value_unless_inferred(device, "bdf"),
        "cpu_affinity": _value_unless_inferred(device, "cpu_affinity"),
        "numa_node": _value_unless_inferred(device, "numa_node") or _NO_NUMA_NODE,
        "connected_to": device.connected_to or None,
        "nc_count": cores_per_device,
        **({"logical_neuroncore_config": lnc} if _has_lnc(instance) else {}),
        "memory_size": device.memory_bytes,
        "neuroncore_ids": range(first_core, first_core + cores_per_device),
        "neuron_processes": [
            {"pid": process.pid, "command": process.command, "neuron_runtime_version": _runtime_version(process)}
            for process in processes
        ],
    }


def _value_unless_inferred(part: Device | Instance, field: str) -> str:
    """Returns the value of a text field; "" if the value is unknown or inferred."""
    text: str | None = getattr(part, field)
    return "" if text is None or field in part.inferred_fields else text
