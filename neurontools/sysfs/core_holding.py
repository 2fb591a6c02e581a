"""Which cores the processes hold that have devices open, as far as that can be told without asking the driver."""

from __future__ import annotations

from collections.abc import Iterable

from neurontools.sysfs.found_process import FoundProcess
from neurontools.sysfs.owners import OpenDevices


def cores_by_process(
    found: Iterable[tuple[FoundProcess, OpenDevices]], cores_per_device: int, lnc: int
) -> dict[int, tuple[int, ...]]:
    """The physical cores each process holds, by PID; none for one without the runtime.

    An open device tells the device and not the cores. NEURON_RT_VISIBLE_CORES tells them where it fits the devices that
    are open. Else the process counts as holding the whole device, unless others have it open too: then nobody does.
    """
    users = [(process, devices.device_indices) for process, devices in found if process.uses_runtime]
    seen: set[int] = set()
    shared: set[int] = set()
    for _, indices in users:
        shared.update(seen.intersection(indices))
        seen.update(indices)
    held: dict[int, tuple[int, ...]] = {}
    for process, indices in users:
        named = _named_cores(process, indices, cores_per_device, lnc)
        held[process.pid] = named or tuple(
            device * cores_per_device + core
            for device in indices
            if device not in shared
            for core in range(cores_per_device)
        )
    return held


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
