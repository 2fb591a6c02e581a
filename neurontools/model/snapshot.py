"""The snapshot, which is the state of one host at one tick, and the keys that identify its counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from neurontools.model.device import Device, DeviceMemory, NeuronCore, sum_device_memory
from neurontools.model.finding import Health
from neurontools.model.host import Host, Instance
from neurontools.model.process import EndedProcess, PodAllocation, Process
from neurontools.model.representation import repr_of_fields, utc_time_text
from neurontools.util.units import mean_known, sum_known


class SourceKind(StrEnum):
    """Where the daemon reads the devices from: a simulation, or the driver's sysfs tree."""

    SIMULATED = "simulated"
    SYSFS = "sysfs"


LATEST_UNIX_SECONDS = 2.0**37
"""The latest valid time of a snapshot, in the year 6325."""

MOST_DEVICES = 64
"""The highest number of devices of a host, which is a limit of the driver."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The complete state of one host at one tick of its daemon. Immutable."""

    sequence: int  # number that increases by one with each snapshot of the same daemon
    taken_at_unix_seconds: float
    taken_at_seconds: float  # CLOCK_MONOTONIC of the host at the tick
    interval_seconds: float  # the daemon's sampling interval
    source: SourceKind
    instance: Instance
    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]  # physical cores, sorted by index
    processes: tuple[Process, ...]  # sorted by PID
    host: Host = Host()
    pod_allocations: tuple[PodAllocation, ...] = ()  # devices that the kubelet allocated; empty without a kubelet
    warnings: tuple[str, ...] = ()  # messages about data that the daemon could not read
    synthetic_load: str | None = None  # scenario of the running synthetic load; None: no synthetic load
    daemon_version: str = ""
    daemon_pid: int = 0
    cores_counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC when the counters of the cores started, which for simulated devices is the start of the daemon.
    None means that the counters started when the driver was loaded.
    """
    health: Health | None = None  # None if the daemon did not check health, so that it is unknown
    ended: tuple[EndedProcess, ...] = ()  # processes that ended in the last minute, oldest first
    daemon_cpu_seconds_total: float | None = None  # CPU time that the daemon itself has used
    daemon_vcpu_ratio: float | None = None  # CPU use of the daemon since the last tick; 1.0 is one busy vCPU
    daemon_resident_bytes: int | None = None
    injected_faults: tuple[InjectedFault, ...] = ()  # faults of simulated devices that are not healed yet, by number

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
        text = f"Snapshot {self.sequence} of {self.instance.instance_type!r}, {self.source}"
        return f"<{text}, {utc_time_text(self.taken_at_unix_seconds)}: {', '.join(parts)}>"

    @property
    def devices_by_index(self) -> dict[int, Device | None]:
        """All devices that the host has or should have, in the order of the index. The value of a missing one is None.

        A device is missing if it is expected and the driver does not show it. If the daemon is too old to tell which
        devices it expects, a gap between the indices is a missing device.
        """
        present = {device.index: device for device in self.devices}
        expected: Iterable[int] = self.instance.expected_device_indices
        expected = expected or range(max((index for index in present if index < MOST_DEVICES), default=0))
        missing = {index for index in expected if index < MOST_DEVICES} - present.keys()
        return dict(sorted({**present, **dict.fromkeys(missing)}.items()))

    @property
    def missing_device_indices(self) -> tuple[int, ...]:
        """Indices of the devices that the host should have and that the driver does not show."""
        return tuple([index for index, device in self.devices_by_index.items() if device is None])

    def core(self, index: int) -> NeuronCore | None:
        """Returns the physical core with this index; None if the core or its device is missing."""
        cores = self.cores
        if 0 <= index < len(cores) and cores[index].index == index:
            return cores[index]
        return next((core for core in cores if core.index == index), None)

    def cores_of(self, process: Process) -> tuple[NeuronCore, ...]:
        """Returns the physical cores that a process holds, except missing cores."""
        return tuple([core for index in process.core_indices if (core := self.core(index)) is not None])


@dataclass(frozen=True, slots=True)
class LogicalNeuronCore:
    """A logical NeuronCore: `logical_neuroncore_config` neighbouring physical cores of one device."""

    index: int  # index on the host
    device_index: int
    cores: tuple[NeuronCore, ...]

    __repr__ = repr_of_fields("index", "device_index", "owner_pids", "utilization_ratio")

    @property
    def owner_pids(self) -> tuple[int, ...]:
        """PIDs of the core's owners. There are several only if processes use different LNCs."""
        if len(self.cores) == 1:  # the usual case, which a live view asks for thousands of times a minute
            owner_pid = self.cores[0].owner_pid
            return () if owner_pid is None else (owner_pid,)
        return tuple(sorted({core.owner_pid for core in self.cores if core.owner_pid is not None}))

    @property
    def candidate_pids(self) -> tuple[int, ...]:
        """PIDs of processes that have the core's device open and may therefore hold the core."""
        return tuple(sorted({pid for core in self.cores for pid in core.candidate_pids}))

    @property
    def is_owner_inferred(self) -> bool:
        """Whether the owner was inferred rather than reported."""
        return any("owner_pid" in core.inferred_fields for core in self.cores)

    @property
    def is_free(self) -> bool | None:
        """Whether the core has no owner; None if a process may hold the core or an unknown process has memory on it."""
        if self.owner_pids:
            return False
        return None if self.candidate_pids or any(core.is_allocated for core in self.cores) else True

    @property
    def utilization_ratio(self) -> float | None:
        """Mean utilization of the physical cores; None if unknown for all of them."""
        if len(self.cores) == 1:
            return self.cores[0].utilization_ratio
        return mean_known([core.utilization_ratio for core in self.cores])

    @property
    def flops_per_second(self) -> float | None:
        """Total FLOPS of the physical cores; None if unknown for all of them."""
        return sum_known(core.flops_per_second for core in self.cores)

    @property
    def memory(self) -> DeviceMemory:
        """Total device memory of the physical cores, by category."""
        return sum_device_memory(core.memory for core in self.cores)


def logical_cores(snapshot: Snapshot, logical_neuroncore_config: int | None = None) -> tuple[LogicalNeuronCore, ...]:
    """Groups the physical cores of a host into logical cores under an LNC, by default the LNC of the host."""
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
"""Identifies the counters of a process on a host: its PID, and the CLOCK_MONOTONIC when the counters started."""


def count_key(process: Process) -> CountKey | None:
    """Returns the key of a process's counters; None if the process does not report when they started."""
    since_seconds = process.counted_since_seconds
    return None if since_seconds is None else (process.pid, since_seconds)


def counters_continue(before: Process, now: Process) -> bool:
    """Returns whether the counters of `now` continue those of `before`, so that their difference is valid.

    Counters continue if `before` and `now` have the same PID and the same start of counting. If neither reports a start
    of counting, the PID and the time of attaching must be the same. If only one reports it, counters do not continue.
    """
    earlier, later = count_key(before), count_key(now)
    if earlier is not None or later is not None:
        return earlier == later
    return before.pid == now.pid and before.attached_at_unix_seconds == now.attached_at_unix_seconds


def counted_since_unix_seconds(process: Process, snapshot: Snapshot) -> float | None:
    """Returns the Unix time when the counters of a process started; None if unknown.

    If the process does not report the start of its counters, returns the time when the process attached.
    """
    since_seconds = process.counted_since_seconds
    if since_seconds is None:
        return process.attached_at_unix_seconds
    return snapshot.taken_at_unix_seconds - (snapshot.taken_at_seconds - since_seconds)


class FaultState(IntEnum):
    """How far an injected fault has progressed."""

    WAITING = 0  # the fault waits for its start time or for an execution
    HOLDS = 1
    OVER = 2  # the fault ended, but its effects remain until it is healed


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One injected fault that is not healed yet: the request and the effects so far."""

    number: int  # number of the fault, counted from 1 in each daemon
    kind: str  # kind of fault, defined in `neurontools.faults.kinds`
    state: FaultState
    device_indices: tuple[int, ...]  # affected devices
    neuroncore_index: int | None  # index of the requested logical core, under the host's default LNC
    pid: int | None  # requested process
    injected_at_unix_seconds: float
    began_at_unix_seconds: float | None = None  # when the fault began; None: it still waits for its begin
    ended_at_unix_seconds: float | None = None  # when the fault ended by itself; None: it has not
    met_total: int = 0  # number of executions that the fault affected
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float = 1.0
    amount: float | None = None  # strength of the fault, in the unit of its kind; None: the kind has none
    part: str | None = None  # affected part of the device, named as the driver names it
    injected_by_uid: int | None = None  # UID of the requester, from the socket's peer credentials; None: unknown
    injected_by_pid: int | None = None  # PID of the requester, from the socket's peer credentials

    __repr__ = repr_of_fields("number", "kind", "state", "device_indices")
