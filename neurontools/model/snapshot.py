"""The snapshot: the state of one host at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from neurontools.model.device import Device, DeviceMemory, NeuronCore, sum_device_memory
from neurontools.model.finding import Health
from neurontools.model.host import Host, Instance
from neurontools.model.process import EndedProcess, PodAllocation, Process
from neurontools.model.representation import repr_of_fields, utc_time_text
from neurontools.util.units import mean_known, sum_known


class SourceKind(StrEnum):
    """Source of the device data."""

    SIMULATED = "simulated"
    SYSFS = "sysfs"


LATEST_UNIX_SECONDS = 2.0**37
"""The year 6325: the latest time that is accepted."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The complete state of one host at one moment. Immutable."""

    sequence: int  # increases by one with each snapshot of a daemon
    taken_at_unix_seconds: float
    taken_at_seconds: float  # CLOCK_MONOTONIC of the host
    interval_seconds: float  # the daemon's sampling interval
    source: SourceKind
    instance: Instance
    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]  # physical, by index
    processes: tuple[Process, ...]  # by PID
    host: Host = Host()
    pod_allocations: tuple[PodAllocation, ...] = ()  # of the kubelet; empty without one
    warnings: tuple[str, ...] = ()  # messages on data that could not be read
    synthetic_load: str | None = None  # the scenario of the synthetic load, if one runs
    daemon_version: str = ""
    daemon_pid: int = 0
    cores_counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC since when the cores' counters count. Simulated devices: the start of the daemon.
    None: since the driver was loaded.
    """
    health: Health | None = None  # None: not checked, which does not mean healthy
    ended: tuple[EndedProcess, ...] = ()  # in the last minute, oldest first; the daemon's history has more
    daemon_cpu_seconds_total: float | None = None  # of the daemon itself
    daemon_vcpu_ratio: float | None = None  # in the last period; 1.0 is one busy vCPU
    daemon_resident_bytes: int | None = None
    injected_faults: tuple[InjectedFault, ...] = ()  # in simulated devices, by number; healed ones are left out

    def __repr__(self) -> str:
        parts = [
            f"{count} {noun}"
            for count, noun in (
                (len(self.devices), "devices"),
                (len(self.cores), "NeuronCores"),
                (len(self.processes), "processes"),
                (len(self.warnings), "warnings"),
            )
            if count or noun != "warnings"
        ]
        what = f"Snapshot {self.sequence} of {self.instance.instance_type!r}, {self.source}"
        return f"<{what}, {utc_time_text(self.taken_at_unix_seconds)}: {', '.join(parts)}>"

    def core(self, index: int) -> NeuronCore | None:
        """Returns the physical core with this index. None if it is missing, for example with its device."""
        cores = self.cores
        if 0 <= index < len(cores) and cores[index].index == index:
            return cores[index]
        return next((core for core in cores if core.index == index), None)

    def cores_of(self, process: Process) -> tuple[NeuronCore, ...]:
        """Returns the physical cores that a process holds, without missing ones."""
        return tuple([core for index in process.core_indices if (core := self.core(index)) is not None])


@dataclass(frozen=True, slots=True)
class LogicalNeuronCore:
    """A logical NeuronCore: `logical_neuroncore_config` neighbouring physical cores of one device."""

    index: int  # global
    device_index: int
    cores: tuple[NeuronCore, ...]

    __repr__ = repr_of_fields("index", "device_index", "owner_pids", "utilization_ratio")

    @property
    def owner_pids(self) -> tuple[int, ...]:
        """PIDs of the owners. More than one only if processes use different LNCs."""
        return tuple(sorted({core.owner_pid for core in self.cores if core.owner_pid is not None}))

    @property
    def candidate_pids(self) -> tuple[int, ...]:
        """PIDs of processes that have the device open and may hold a core of it."""
        return tuple(sorted({pid for core in self.cores for pid in core.candidate_pids}))

    @property
    def is_owner_inferred(self) -> bool:
        """Whether the owner was inferred."""
        return any("owner_pid" in core.inferred_fields for core in self.cores)

    @property
    def is_free(self) -> bool | None:
        """Whether the core has no owner. None: a process may hold it, or a hidden process has memory on it."""
        if self.owner_pids:
            return False
        return None if self.candidate_pids or any(core.is_allocated for core in self.cores) else True

    @property
    def utilization_ratio(self) -> float | None:
        """Mean over its physical cores. None if unknown for all."""
        return mean_known(core.utilization_ratio for core in self.cores)

    @property
    def flops_per_second(self) -> float | None:
        """Sum over its physical cores. None if unknown for all."""
        return sum_known(core.flops_per_second for core in self.cores)

    @property
    def memory(self) -> DeviceMemory:
        """Sum over its physical cores."""
        return sum_device_memory(core.memory for core in self.cores)


def logical_cores(snapshot: Snapshot, logical_neuroncore_config: int | None = None) -> tuple[LogicalNeuronCore, ...]:
    """Groups the physical cores of the host by LNC (default: the host's)."""
    size = logical_neuroncore_config or snapshot.instance.logical_neuroncore_config
    groups: dict[tuple[int, int], list[NeuronCore]] = {}
    for core in snapshot.cores:
        groups.setdefault((core.device_index, core.index_on_device // size), []).append(core)
    per_device = snapshot.instance.physical_cores_per_device // size
    return tuple(
        LogicalNeuronCore(device_index * per_device + position, device_index, tuple(cores))
        for (device_index, position), cores in sorted(groups.items())
    )


CountKey = tuple[int, float]
"""Identifies a series of counters on a host: the PID and the time since when it counts."""


def count_key(process: Process) -> CountKey | None:
    """Returns the key of the process's counters. None if it does not report since when they count."""
    since_seconds = process.counted_since_seconds
    return None if since_seconds is None else (process.pid, since_seconds)


def counters_continue(before: Process, now: Process) -> bool:
    """Whether the counters of `now` continue those of `before`, so that subtracting them is valid.

    If only one of the two reports since when it counts, the counters do not continue: the counters of the other are 0.
    If neither does, they continue when both attached at the same time.
    """
    earlier, later = count_key(before), count_key(now)
    if earlier is not None or later is not None:
        return earlier == later
    return before.pid == now.pid and before.attached_at_unix_seconds == now.attached_at_unix_seconds


def counted_since_unix_seconds(process: Process, snapshot: Snapshot) -> float | None:
    """Returns the Unix time since when the process's counters count. None: unknown.

    Falls back to the time of attachment if the process does not report it.
    """
    since_seconds = process.counted_since_seconds
    if since_seconds is None:
        return process.attached_at_unix_seconds
    return snapshot.taken_at_unix_seconds - (snapshot.taken_at_seconds - since_seconds)


class FaultState(IntEnum):
    """Progress of an injected fault."""

    WAITING = 0  # for its time, or for an execution
    HOLDS = 1
    OVER = 2  # ended; its effects stay until it is healed


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One injected fault that has not been healed: the request and its effects so far."""

    number: int  # from 1, unique in its daemon
    kind: str  # of `neurontools.faults.kinds`
    state: FaultState
    device_indices: tuple[int, ...]  # affected devices
    neuroncore_index: int | None  # requested logical core, under the host's default LNC
    pid: int | None  # requested process
    injected_at_unix_seconds: float
    began_at_unix_seconds: float | None = None  # None: still waiting
    ended_at_unix_seconds: float | None = None  # None: has not ended by itself
    met_total: int = 0  # executions that it affected
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float = 1.0
    amount: float | None = None  # in the unit of the kind; None: the kind has no amount
    part: str | None = None  # of the device, in the driver's terms
    injected_by_uid: int | None = None  # by the kernel's peer credentials; None: unknown
    injected_by_pid: int | None = None  # by the kernel's peer credentials

    __repr__ = repr_of_fields("number", "kind", "state", "device_indices")
