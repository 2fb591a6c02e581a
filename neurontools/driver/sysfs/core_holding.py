"""Which cores the processes hold that have devices open, as far as that can be told without asking the driver."""

from __future__ import annotations

from collections.abc import Iterable

from neurontools.driver.sysfs.found_process import FoundProcess
from neurontools.driver.sysfs.owners import OpenDevices


class CoreHolding:
    """Who holds which physical cores.

    `cores` has those of each process with the runtime, by PID. An open device tells the device and not the cores.
    NEURON_RT_VISIBLE_CORES tells them where it fits the devices that are open. Else a process that alone has a device
    open counts as holding all of it, which is a conclusion: its PID is in `inferred_pids`. Of a device that others have
    open too it holds nothing that we know; `candidates` names, by device, the processes that may hold what is left.
    """

    __slots__ = ("candidates", "cores", "inferred_pids")

    def __init__(self, found: Iterable[tuple[FoundProcess, OpenDevices]], cores_per_device: int, lnc: int) -> None:
        self.cores: dict[int, tuple[int, ...]] = {}
        self.inferred_pids: set[int] = set()
        self.candidates: dict[int, tuple[int, ...]] = {}
        unnamed: dict[int, list[int]] = {}
        users: dict[int, int] = {}
        for process, devices in found:
            if not process.uses_runtime:
                continue
            named = self.cores[process.pid] = _named_cores(process, devices.device_indices, cores_per_device, lnc)
            for index in devices.device_indices:
                users[index] = users.get(index, 0) + 1
                if not named:
                    unnamed.setdefault(index, []).append(process.pid)
        for index, pids in sorted(unnamed.items()):
            if users[index] == 1:
                self.cores[pids[0]] += tuple(range(index * cores_per_device, (index + 1) * cores_per_device))
                self.inferred_pids.add(pids[0])
            else:
                self.candidates[index] = tuple(sorted(pids))


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
