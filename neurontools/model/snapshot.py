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
    """Where the state of the devices comes from."""

    SIMULATED = "simulated"
    SYSFS = "sysfs"


LATEST_UNIX_SECONDS = 2.0**37
"""No clock is right beyond it, and no calendar shows it: the year 6325."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one host at one moment; complete, and never changed once made."""

    sequence: int  # grows by one with each snapshot of a daemon
    taken_at_unix_seconds: float
    taken_at_seconds: float  # CLOCK_MONOTONIC of the host
    interval_seconds: float  # the daemon's sampling interval
    source: SourceKind
    instance: Instance
    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]  # physical, by index
    processes: tuple[Process, ...]  # by PID
    host: Host = Host()
    pod_allocations: tuple[PodAllocation, ...] = ()  # by the kubelet; empty where there is none
    warnings: tuple[str, ...] = ()  # what could not be read, in words
    synthetic_load: str | None = None  # the scenario that invents processes, if one runs
    daemon_version: str = ""
    daemon_pid: int = 0
    cores_counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC since when the counters of cores count: where devices are simulated, since the daemon began.
    None: since the driver was loaded, which counts them.
    """
    health: Health | None = None  # None: nobody has judged it, which is not the same as well
    ended: tuple[EndedProcess, ...] = ()  # within the last minute, oldest first; the daemon knows more
    daemon_cpu_seconds_total: float | None = None  # of the daemon itself
    daemon_vcpu_ratio: float | None = None  # of the last period; 1.0 is one vCPU busy
    daemon_resident_bytes: int | None = None
    injected_faults: tuple[InjectedFault, ...] = ()  # into simulated devices, by number; none that was healed

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
        """The physical core of this index; None when it is not there, as on a device that vanished."""
        cores = self.cores
        if 0 <= index < len(cores) and cores[index].index == index:
            return cores[index]
        return next((core for core in cores if core.index == index), None)

    def cores_of(self, process: Process) -> tuple[NeuronCore, ...]:
        """The physical cores that a process holds, those that are there."""
        return tuple([core for index in process.core_indices if (core := self.core(index)) is not None])


@dataclass(frozen=True, slots=True)
class LogicalNeuronCore:
    """What a user calls a NeuronCore: `logical_neuroncore_config` neighbouring physical cores of one device."""

    index: int  # global
    device_index: int
    cores: tuple[NeuronCore, ...]

    __repr__ = repr_of_fields("index", "device_index", "owner_pids", "utilization_ratio")

    @property
    def owner_pids(self) -> tuple[int, ...]:
        """Who holds its physical cores; more than one only where processes run with different LNCs."""
        return tuple(sorted({core.owner_pid for core in self.cores if core.owner_pid is not None}))

    @property
    def candidate_pids(self) -> tuple[int, ...]:
        """Who has the device open and may hold one of its physical cores."""
        return tuple(sorted({pid for core in self.cores for pid in core.candidate_pids}))

    @property
    def is_owner_inferred(self) -> bool:
        """Whether who holds it was only concluded."""
        return any("owner_pid" in core.inferred_fields for core in self.cores)

    @property
    def is_free(self) -> bool | None:
        """Whether nobody holds it; None when that is unknown: somebody may, or nobody we see has memory there."""
        if self.owner_pids:
            return False
        return None if self.candidate_pids or any(core.is_allocated for core in self.cores) else True

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its physical cores; None when it is unknown for all of them."""
        return mean_known(core.utilization_ratio for core in self.cores)

    @property
    def flops_per_second(self) -> float | None:
        """The sum over its physical cores; None when it is unknown for all of them."""
        return sum_known(core.flops_per_second for core in self.cores)

    @property
    def memory(self) -> DeviceMemory:
        """The sum over its physical cores."""
        return sum_device_memory(core.memory for core in self.cores)


def logical_cores(snapshot: Snapshot, logical_neuroncore_config: int | None = None) -> tuple[LogicalNeuronCore, ...]:
    """All cores of the host, grouped; by its default LNC unless another one is given."""
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
"""What names one count on a host: a PID, and since when it counts."""


def count_key(process: Process) -> CountKey | None:
    """The count that the counters of a process belong to; None when it does not tell since when they count."""
    since_seconds = process.counted_since_seconds
    return None if since_seconds is None else (process.pid, since_seconds)


def counters_continue(before: Process, now: Process) -> bool:
    """Whether the counters of `now` went on from those of `before`, so that they may be subtracted.

    A process that has told since when it counts does not go on from a record of before it told anything: there all its
    counters are 0, whatever it had counted. Where neither tells, the two are of one count if they attached at the same
    moment.
    """
    earlier, later = count_key(before), count_key(now)
    if earlier is not None or later is not None:
        return earlier == later
    return before.pid == now.pid and before.attached_at_unix_seconds == now.attached_at_unix_seconds


def counted_since_unix_seconds(process: Process, snapshot: Snapshot) -> float | None:
    """Since when the counters of a process count, as Unix time by the clock of this snapshot; None: not known.

    A process that has not told counts since it attached, as far as anybody knows.
    """
    since_seconds = process.counted_since_seconds
    if since_seconds is None:
        return process.attached_at_unix_seconds
    return snapshot.taken_at_unix_seconds - (snapshot.taken_at_seconds - since_seconds)


class FaultState(IntEnum):
    """How far a fault has come."""

    WAITING = 0  # its time, or the execution that is to meet it, has not come
    HOLDS = 1
    OVER = 2  # it has ended; what it left behind stays until it is healed


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault that was injected and has not been healed. What was asked for, and what came of it."""

    number: int  # of its daemon, from 1
    kind: str  # of `neurontools.faults.kinds`
    state: FaultState
    device_indices: tuple[int, ...]  # where it is
    neuroncore_index: int | None  # it was asked for this logical core, under the default LNC of the host
    pid: int | None  # it was asked for this process
    injected_at_unix_seconds: float
    began_at_unix_seconds: float | None = None  # None: it waits
    ended_at_unix_seconds: float | None = None  # None: it has not ended by itself
    met_total: int = 0  # how often executions met it
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float = 1.0
    amount: float | None = None  # in the unit of the kind; None: it has none
    part: str | None = None  # of the device, in the driver's words
    injected_by_uid: int | None = None  # who asked for it, by the word of the kernel; None: not known
    injected_by_pid: int | None = None  # the process that asked for it

    __repr__ = repr_of_fields("number", "kind", "state", "device_indices")
