"""Figures derived from one snapshot, and the filter that limits a snapshot to some devices or NeuronCores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from neurontools import catalog
from neurontools.model import (
    Device,
    DeviceMemory,
    EndedProcess,
    ErrorCounters,
    ExecutionCounters,
    Finding,
    Health,
    HostMemory,
    LogicalNeuronCore,
    NeuronCore,
    Process,
    Severity,
    Snapshot,
    SourceKind,
    TrainingCounters,
    logical_cores,
    sum_device_memory,
    sum_host_memory,
)
from neurontools.model.finding import FindingKind
from neurontools.model.jobs import Rank, RunningJob, in_collective_since, running_jobs
from neurontools.model.process import age_seconds
from neurontools.model.snapshot import MOST_DEVICES
from neurontools.util.units import mean_known, sum_known

_NO_COUNTERS = TrainingCounters()
_UNKNOWN_DEVICE_MEMORY = DeviceMemory(*[None] * len(DeviceMemory.__slots__))


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Usage figures of one process, combined over its cores. None means unknown."""

    process: Process
    core_count: int  # number of logical cores held, under the LNC of this process
    utilization_ratio: float | None  # mean utilization of the process's cores
    flops_per_second: float | None
    mfu_ratio: float | None  # FLOPS relative to the peak of the held cores for PEAK_DTYPE
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    errors_total: int | None
    failed_executions_total: int | None
    since_last_execution_seconds: float | None
    steps_per_second: float | None
    requests_per_second: float | None
    request_p99_seconds: float | None
    since_last_step_seconds: float | None
    elapsed_seconds: float | None  # since the start of the process
    compiling_for_seconds: float | None  # duration of the running compilation; None: none runs, or not reported
    # Time since the running collective began. None: no collective runs, not reported, or figures of a whole job.
    in_collective_for_seconds: float | None = None
    checkpoints_total: int | None = None  # of a job: of the rank that has written most
    checkpointing_for_seconds: float | None = None  # duration of the running checkpoint; None: none, or not reported
    queue_depth: int | None = None  # requests that wait now, of all served models

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def vcpu_ratio(self) -> float | None:
        """vCPU use in user and system mode; 2.0 is two busy vCPUs."""
        user, system = self.process.vcpu_user_ratio, self.process.vcpu_system_ratio
        return None if user is None or system is None else user + system


class Figures:
    """Values derived from one snapshot, computed at first use and cached for all pages.

    Pages look up devices by index, so `snapshot` has a placeholder for each device that is missing, hidden, or not
    given to this container. A placeholder has no memory and no cores; a hidden device keeps its NeuronLink connections.
    """

    def __init__(self, snapshot: Snapshot, all_devices: Mapping[int, Device | None] | None = None) -> None:
        known = snapshot.devices_by_index if all_devices is None else all_devices
        present = {device.index for device in snapshot.devices}
        absent = set(range(1 + max((index for index in known if index < MOST_DEVICES), default=-1))) - present
        self.missing_devices = frozenset(snapshot.missing_device_indices)
        self.hidden_devices = frozenset(absent - self.missing_devices)
        self.snapshot = snapshot
        if absent:
            placeholders = [_absent_device(index, known.get(index)) for index in absent]
            devices = tuple(sorted((*snapshot.devices, *placeholders), key=lambda device: device.index))
            self.snapshot = replace(snapshot, devices=devices)

    @cached_property
    def cores(self) -> tuple[LogicalNeuronCore, ...]:
        """The logical cores that the host has with its default LNC."""
        # At least 1, because a recording may contain an invalid LNC of 0.
        return logical_cores(self.snapshot, max(1, self.snapshot.instance.logical_neuroncore_config))

    @cached_property
    def cores_by_device(self) -> list[list[LogicalNeuronCore]]:
        """The logical cores of each device, by device index."""
        found: list[list[LogicalNeuronCore]] = [[] for _ in self.snapshot.devices]
        for core in self.cores:
            if core.device_index < len(found):
                found[core.device_index].append(core)
        return found

    @cached_property
    def free(self) -> dict[int, bool | None]:
        """Whether each logical core is free, by core index; None if unknown."""
        return {core.index: core.is_free for core in self.cores}

    @cached_property
    def jobs(self) -> tuple[RunningJob, ...]:
        """The jobs on this host. A process outside any job counts as a job with one process."""
        return running_jobs(self.snapshot)

    @cached_property
    def ranks(self) -> dict[int, Rank]:
        """The processes that hold cores or use the runtime, by PID."""
        found = {rank.process.pid: rank for job in self.jobs for rank in job.ranks}
        return {process.pid: found[process.pid] for process in self.snapshot.processes if process.pid in found}

    @cached_property
    def by_pid(self) -> dict[int, ProcessFigures]:
        """The figures of all processes that hold cores or use the runtime, by PID."""
        return {pid: self._figures(rank) for pid, rank in self.ranks.items()}

    def process_figures(self, pid: int | None) -> ProcessFigures | None:
        """Returns the figures of one process; None if the PID is unknown."""
        rank = self.ranks.get(pid) if pid is not None else None
        return None if rank is None else self._figures(rank)

    @cached_property
    def marked_cores(self) -> dict[int, Severity]:
        """The highest severity of the findings on the process that holds each logical core, by core index."""
        marked: dict[int, Severity] = {}
        lnc = max(1, self.snapshot.instance.logical_neuroncore_config)
        for finding in self._findings():
            # In a stuck job, only the straggler is at fault: the other ranks wait for it.
            pids = {finding.pid} if finding.kind == FindingKind.STUCK else {finding.pid, *finding.pids}
            for process in (self.ranks[pid].process for pid in pids if pid in self.ranks):
                own_lnc = process.logical_neuroncore_config or lnc
                for physical in process.core_indices:
                    if finding.neuroncore_index in (None, physical // own_lnc):
                        marked[physical // lnc] = max(finding.severity, marked.get(physical // lnc, Severity.OK))
        return marked

    @cached_property
    def marked_devices(self) -> dict[int, Severity]:
        """The highest severity of the findings that concern a device but no process, by device index."""
        marked: dict[int, Severity] = {}
        for finding in self._findings():
            for index in finding.device_indices if finding.pid is None else ():
                marked[index] = max(finding.severity, marked.get(index, Severity.OK))
        return marked

    def _findings(self) -> list[Finding]:
        """Returns the findings more severe than a notice."""
        judged = self.snapshot.health
        return [] if judged is None else [each for each in judged.findings if each.severity > Severity.NOTICE]

    @cached_property
    def peak_flops_per_core(self) -> float | None:
        """The peak FLOPS of one physical core for PEAK_DTYPE; None if the catalog has no value."""
        return catalog.peak_flops_per_core(self.snapshot.instance.instance_type)

    def held_cores(self, pid: int | None) -> tuple[NeuronCore, ...]:
        """Returns the physical cores that a process holds; all cores of the host if `pid` is None."""
        if pid is None:
            return self.snapshot.cores
        rank = self.ranks.get(pid)
        return () if rank is None else rank.cores

    def device_memory(self, pid: int | None) -> DeviceMemory:
        """Returns the device memory of a process, or of the whole host if `pid` is None, by category."""
        owned = self.held_cores(pid)
        return sum_device_memory([core.memory for core in owned]) if owned or pid is None else _UNKNOWN_DEVICE_MEMORY

    def host_memory(self, pid: int | None) -> HostMemory:
        """Returns the host memory of a process, or of the whole host if `pid` is None, by category."""
        if pid is None and self.snapshot.source is SourceKind.SYSFS:  # the driver reports host memory per device
            return sum_host_memory(device.host_memory for device in self.snapshot.devices if device.memory_bytes)
        return sum_host_memory([process.host_memory for process in self.tab_processes(pid)])

    def tab_processes(self, pid: int | None) -> tuple[Process, ...]:
        """Returns the process with this PID, or all processes if `pid` is None; () if the PID is unknown."""
        ranks = self.ranks.values() if pid is None else [self.ranks[pid]] if pid in self.ranks else ()
        return tuple([rank.process for rank in ranks])

    def tab_figures(self, pid: int | None) -> tuple[ProcessFigures, ...]:
        """Returns the figures of the process with this PID, or of all processes if `pid` is None."""
        if pid is None:
            return tuple(self.by_pid.values())
        figures = self.process_figures(pid)
        return (figures,) if figures is not None else ()

    def average_utilization(self, pid: int | None) -> float | None:
        """Returns the mean utilization of a process's cores, or of all cores if `pid` is None; None if unknown."""
        return mean_known([core.utilization_ratio for core in self.held_cores(pid)])

    def flops(self, pid: int | None) -> float | None:
        """Returns the total FLOPS of a process's cores, or of all cores if `pid` is None; None if unknown."""
        return sum_known([core.flops_per_second for core in self.held_cores(pid)])

    def memory_ratio(self, device_index: int) -> float | None:
        device = self.snapshot.devices[device_index]
        used = self.device_used_bytes[device_index]
        return None if used is None or not device.memory_bytes else used / device.memory_bytes

    @cached_property
    def device_used_bytes(self) -> tuple[int | None, ...]:
        """Bytes of device memory in use, by device index."""
        return tuple(
            [sum_known([core.memory.total_bytes for core in cores]) for cores in self._physical_cores_by_device]
        )

    @cached_property
    def device_utilization(self) -> tuple[float | None, ...]:
        """The mean utilization of each device's cores, by device index; None for a device without known utilization."""
        return tuple(
            [mean_known([core.utilization_ratio for core in cores]) for cores in self._physical_cores_by_device]
        )

    @cached_property
    def _physical_cores_by_device(self) -> list[list[NeuronCore]]:
        found: list[list[NeuronCore]] = [[] for _ in self.snapshot.devices]
        for core in self.snapshot.cores:
            if core.device_index < len(found):
                found[core.device_index].append(core)
        return found

    def _figures(self, rank: Rank) -> ProcessFigures:
        process, cores = rank.process, rank.cores
        flops = sum_known(core.flops_per_second for core in cores)
        last = rank.last_execution_at_unix_seconds
        peak = self.peak_flops_per_core
        training = process.training or _NO_COUNTERS
        return ProcessFigures(
            process=process,
            core_count=len(process.neuroncore_indices),
            utilization_ratio=rank.utilization_ratio,
            flops_per_second=flops,
            mfu_ratio=flops / (peak * len(cores)) if flops is not None and peak and cores else None,
            device_memory_bytes=rank.device_memory_bytes,
            host_memory_bytes=process.host_memory.total_bytes,
            errors_total=None if process.errors is None else _sum_counters(process.errors),
            failed_executions_total=None
            if process.executions is None
            else _sum_counters(process.executions) - process.executions.completed_total,
            since_last_execution_seconds=None if last is None else max(0.0, self.snapshot.taken_at_unix_seconds - last),
            steps_per_second=rank.steps_per_second,
            requests_per_second=rank.requests_per_second,
            request_p99_seconds=rank.request_p99_seconds,
            since_last_step_seconds=age_seconds(rank.last_step_at_seconds, self.snapshot.taken_at_seconds),
            elapsed_seconds=age_seconds(process.started_at_unix_seconds, self.snapshot.taken_at_unix_seconds),
            compiling_for_seconds=age_seconds(rank.compiling_since_seconds, self.snapshot.taken_at_seconds),
            in_collective_for_seconds=age_seconds(in_collective_since(process), self.snapshot.taken_at_seconds),
            checkpoints_total=training.checkpoints_total,
            checkpointing_for_seconds=age_seconds(training.checkpointing_since_seconds, self.snapshot.taken_at_seconds),
            queue_depth=sum_known(served.queue_depth for served in process.served_models),
        )


def _absent_device(index: int, hidden: Device | None) -> Device:
    links = () if hidden is None else hidden.connected_to
    return Device(index, bdf=None, cpu_affinity=None, numa_node=None, connected_to=links, memory_bytes=0)


def _sum_counters(counters: ErrorCounters | ExecutionCounters) -> int:
    return sum([getattr(counters, name) for name in counters.__slots__])


def weighted_mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    """Returns the mean of the known values, each given with its weight; None if the weights add up to 0."""
    known = [(value, weight) for value, weight in values if value is not None]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if whole else None


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Selects devices and NeuronCores of a host. The default selects everything.

    `device_indices` and `device_names` (PCI addresses or serial numbers) select devices. All are selected if both are
    empty. `first_core` and `core_count` select logical cores, counted under `logical_neuroncore_config` (None: the
    host's LNC).
    """

    device_indices: frozenset[int] = frozenset()
    device_names: frozenset[str] = frozenset()
    first_core: int = 0
    core_count: int | None = None
    logical_neuroncore_config: int | None = None

    def __bool__(self) -> bool:
        return bool(self.device_indices or self.device_names or self.core_count is not None)

    def first_missing_device(self, snapshot: Snapshot) -> str:
        """Returns the index or name of a selected device that the host lacks; "" if it has all of them."""
        names = {name for device in snapshot.devices for name in device.names}
        lost = [str(index) for index in sorted(self.device_indices - snapshot.devices_by_index.keys())]
        return next(iter([*lost, *sorted(self.device_names - names)]), "")

    def has_cores(self, snapshot: Snapshot) -> bool:
        """Returns whether the host has any of the selected NeuronCores.

        Returns True while an expected device is missing, because the cores may be on that device.
        """
        return (
            self.core_count is None
            or bool(snapshot.missing_device_indices)
            or any(core.index in self._visible_core_range(snapshot) for core in snapshot.cores)
        )

    def _visible_core_range(self, snapshot: Snapshot) -> range:
        """Returns the indices of the selected physical NeuronCores. Valid only if `core_count` is set."""
        size = self.logical_neuroncore_config or snapshot.instance.logical_neuroncore_config
        return range(self.first_core * size, (self.first_core + (self.core_count or 0)) * size)

    def filtered_figures(self, snapshot: Snapshot, hidden: frozenset[int] = frozenset()) -> Figures:
        """Returns the figures of the selected devices and cores, without the devices in `hidden`."""
        if not self and not hidden:
            return Figures(snapshot)
        part = self.filter_snapshot(snapshot, hidden)
        return Figures(part, snapshot.devices_by_index)

    def filter_snapshot(self, snapshot: Snapshot, hidden: frozenset[int] = frozenset()) -> Snapshot:
        """Returns the snapshot with only the selected devices and cores, and the processes that hold any of them."""
        if not self and not hidden:
            return snapshot
        known = snapshot.devices_by_index
        shown = known.keys() - hidden
        if self.device_indices or self.device_names:
            shown &= self.device_indices | {
                device.index for device in snapshot.devices if not self.device_names.isdisjoint(device.names)
            }
        cores = tuple(core for core in snapshot.cores if core.device_index in shown)
        if self.core_count is not None:
            visible = self._visible_core_range(snapshot)
            cores = tuple(core for core in cores if core.index in visible)
            size = snapshot.instance.physical_cores_per_device
            missing = (index for index, device in known.items() if device is None)
            shown &= {core.device_index for core in cores}.union(
                index for index in missing if visible.start < (index + 1) * size and index * size < visible.stop
            )
        indices = {core.index for core in cores}
        return replace(
            snapshot,
            instance=replace(snapshot.instance, expected_device_indices=tuple(sorted(shown))),
            ended=_ended_on_devices(snapshot.ended, shown),
            devices=tuple(device for device in snapshot.devices if device.index in shown),
            cores=cores,
            health=_health_without(snapshot.health, known.keys() - shown),
            processes=tuple(
                process
                for process in snapshot.processes
                if indices.intersection(process.core_indices)
                or (not process.core_indices and shown.intersection(process.device_indices))
            ),
        )

    def filter_ended(
        self, ended: tuple[EndedProcess, ...], part: Snapshot, hidden: frozenset[int] = frozenset()
    ) -> tuple[EndedProcess, ...]:
        """Returns the ended processes that used any of the devices in the filtered snapshot `part`."""
        if not self and not hidden:
            return ended
        return _ended_on_devices(ended, set(part.devices_by_index))


def _ended_on_devices(ended: tuple[EndedProcess, ...], shown: set[int]) -> tuple[EndedProcess, ...]:
    return tuple(process for process in ended if shown.intersection(process.device_indices))


def _health_without(health: Health | None, hidden: set[int]) -> Health | None:
    """Removes the findings that concern only hidden devices. Keeps findings that concern no device."""
    if health is None:
        return None
    shown = replace(
        health, device_indices=tuple(index for index in health.device_indices if index not in hidden)
    ).with_unknown(health.unknown_devices)
    return replace(
        shown,
        findings=tuple(
            finding
            for finding in health.findings
            if not finding.device_indices or not hidden.issuperset(finding.device_indices)
        ),
    )
