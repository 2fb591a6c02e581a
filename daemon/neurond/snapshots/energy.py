"""Divides the power of each device among the processes on it, and sums up their energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neurontools.model import Device, NeuronCore, Process, Snapshot

_MINUTE_SECONDS = 60.0  # the driver reports power for each minute

_Holder = tuple[int, float | None]  # PID and time of attaching: a PID may be used again


@dataclass(slots=True)
class _DeviceShares:
    """Use of one device since the end of its latest counted minute of power."""

    sampled_at_unix_seconds: float
    busy_seconds: dict[_Holder | None, float] = field(default_factory=dict)  # None: cores without a known owner
    is_known: bool = True  # whether the busy time of all cores is known


class EnergyMeter:
    """Adds power and energy to the processes of snapshots. `derive` must get every snapshot, in order.

    The energy of a minute goes to the processes in proportion to the busy time of their cores. If no core was busy,
    each process gets its share of the held cores. Only minutes that the daemon saw from start to end count.
    """

    def __init__(self) -> None:
        self._devices: dict[int, _DeviceShares] = {}
        self._busy_before: dict[int, float] = {}
        self._power: dict[_Holder, dict[int, float | None]] = {}  # the latest minute of each device
        self._energy: dict[_Holder, float] = {}

    def derive(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the power and energy of its processes; unchanged if no device reported power."""
        powered = {device.index: device for device in snapshot.devices if device.power is not None}
        if not powered and not self._devices and not self._energy:
            return snapshot
        holders = {process.pid: _holder(process) for process in snapshot.processes if process.core_indices}
        cores: dict[int, list[NeuronCore]] = {}
        for core in snapshot.cores:
            if core.device_index in powered:
                cores.setdefault(core.device_index, []).append(core)
        for index in self._devices.keys() - powered.keys():
            del self._devices[index]
            for parts in self._power.values():
                parts.pop(index, None)
        for device in powered.values():
            self._observe(device, cores.get(device.index, []), holders)
        for gone in self._power.keys() - set(holders.values()):
            del self._power[gone]
        for gone in self._energy.keys() - set(holders.values()):
            del self._energy[gone]
        return replace(snapshot, processes=tuple(self._with_energy(process) for process in snapshot.processes))

    def _observe(self, device: Device, cores: list[NeuronCore], holders: Mapping[int, _Holder]) -> None:
        power = device.power
        if power is None:
            return
        shares = self._devices.get(device.index)
        if shares is None:
            shares = self._devices[device.index] = _DeviceShares(power.sampled_at_unix_seconds)
            for core in cores:
                self._busy_before[core.index] = core.busy_seconds_total or 0.0
        for core in cores:
            self._add_busy_time(shares, core, holders)
        if power.sampled_at_unix_seconds == shares.sampled_at_unix_seconds:
            return
        self._devices[device.index] = _DeviceShares(power.sampled_at_unix_seconds)
        owners = [holders.get(core.owner_pid) if core.owner_pid is not None else None for core in cores]
        parts = shares.busy_seconds
        if not any(parts.values()):
            parts = {owner: float(owners.count(owner)) for owner in owners if owner is not None}
        whole = sum(parts.values())
        for owner in {owner for owner in owners if owner is not None}:
            ratio = power.average_ratio * parts.get(owner, 0.0) / whole if shares.is_known and whole else None
            self._power.setdefault(owner, {})[device.index] = ratio
            if ratio is not None:
                self._energy[owner] = self._energy.get(owner, 0.0) + ratio * _MINUTE_SECONDS

    def _add_busy_time(self, shares: _DeviceShares, core: NeuronCore, holders: Mapping[int, _Holder]) -> None:
        total = core.busy_seconds_total
        if total is None:
            shares.is_known = shares.is_known and core.owner_pid is None and not core.candidate_pids
            return
        used = max(0.0, total - self._busy_before.get(core.index, total))
        self._busy_before[core.index] = total
        if used:
            owner = holders.get(core.owner_pid) if core.owner_pid is not None else None
            shares.busy_seconds[owner] = shares.busy_seconds.get(owner, 0.0) + used

    def _with_energy(self, process: Process) -> Process:
        holder = _holder(process)
        parts = self._power.get(holder, {})
        known = [part for index in process.device_indices if (part := parts.get(index)) is not None]
        power = sum(known) if known and len(known) == len(process.device_indices) else None
        energy = self._energy.get(holder)
        if power is None and energy is None:
            return process
        return replace(process, power_ratio=power, energy_full_power_seconds=energy)


def _holder(process: Process) -> _Holder:
    return process.pid, process.attached_at_unix_seconds
