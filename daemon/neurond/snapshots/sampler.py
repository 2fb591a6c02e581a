"""Builds snapshots from the device source, the core allocator and the operating system."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from neurond.allocator import CoreAllocator, CoreLease, CoreReport, HostShape
from neurond.journal.accounts import Departure, reported_usage
from neurond.snapshots.energy import EnergyMeter
from neurond.snapshots.rates import RateCalculator
from neurond.sources import DeviceSource
from neurond.sources.simulated import SyntheticLoad
from neurond.system.clocks import SteadyClock
from neurond.system.host_metrics import HostReader
from neurond.system.processes import JobReader, ProcessFacts, ProcessTable
from neurontools.driver.environment import Roots
from neurontools.driver.processes import OwnUsage
from neurontools.model import (
    CoreWork,
    Host,
    Instance,
    LoadedModel,
    NeuronCore,
    Process,
    ServedModel,
    Snapshot,
    SourceKind,
)
from neurontools.util.version import __version__

_MOST_ENDED = 256


class Sampler:
    """Takes snapshots. To be used in the event loop's thread only. All times are by the SteadyClock.

    `departures` are the processes whose leases ended between the last two snapshots. `ended` are the last records of
    processes that have reported and that ended between the snapshots of the last two ticks. `unknown_health` says, by
    device index, why the health of a device was unknown in the last snapshot.
    """

    def __init__(
        self,
        source: DeviceSource,
        allocator: CoreAllocator,
        load: SyntheticLoad | None,
        interval_seconds: float,
        roots: Roots | None = None,
        clock: SteadyClock | None = None,
        device_max_watts: float | None = None,
    ) -> None:
        roots = roots or Roots()
        self._source = source
        self._allocator = allocator
        self._load = load
        self._interval_seconds = interval_seconds
        self._host_reader = HostReader(roots.sys, roots.proc)
        self._clock = clock or SteadyClock()
        self._table = ProcessTable(self._clock)
        self._jobs = JobReader(roots.proc)
        self._rates = RateCalculator()
        self._energy = EnergyMeter()
        self._device_max_watts = device_max_watts
        self._read_instance = self._instance = source.instance
        self._sequence = 0
        self._host = Host()
        self._host_warnings: tuple[str, ...] = ()
        self._own_cost = OwnUsage()
        self._ended: deque[Process] = deque(maxlen=_MOST_ENDED)
        self.departures: tuple[Departure, ...] = ()
        self.ended: tuple[Process, ...] = ()
        self.unknown_health: Mapping[int, str] = {}

    def sample(self, *, whole: bool = True, warnings: tuple[str, ...] = ()) -> Snapshot:
        """Takes a snapshot. Adds `warnings` to the snapshot's other warnings.

        Without `whole`, vCPUs, memory and process times keep their previous values, so that a snapshot between two
        ticks does not distort their rates.
        """
        departed = self._allocator.pop_departed()
        self.departures = tuple(map(self._departure, departed))
        self._ended += [
            departure.process
            for lease, departure in zip(departed, self.departures, strict=True)
            if lease.report is not None
        ]
        if whole:
            self.ended = tuple(self._ended)
            self._ended.clear()
            if self._load is not None:
                self._load.advance(time.monotonic())
            self._host, self._host_warnings = self._host_reader.read()
            self._own_cost.measure()
            self._table.refresh(lease.pid for lease in self._allocator.leases if not lease.synthetic)
        reading = self._source.read()
        self.unknown_health = reading.unknown_health
        cores, found = reading.cores, reading.processes
        is_simulated = self._source.kind is SourceKind.SIMULATED
        if not is_simulated:  # a simulated source already reads core owners from the allocator
            cores, found = with_attached(cores, found, self._allocator.leases)
        self._sequence += 1
        now_seconds = time.monotonic()
        snapshot = Snapshot(
            sequence=self._sequence,
            taken_at_unix_seconds=self._clock.at(now_seconds),
            taken_at_seconds=now_seconds,
            interval_seconds=self._interval_seconds,
            source=self._source.kind,
            instance=self._instance_now(),
            devices=reading.devices,
            cores=cores,
            processes=self._processes(now_seconds, found),
            host=self._host,
            warnings=warnings + reading.warnings + self._host_warnings,
            synthetic_load=self._load.scenario if self._load else None,
            daemon_version=__version__,
            daemon_pid=os.getpid(),
            cores_counted_since_seconds=self._allocator.began_seconds if is_simulated else None,
            daemon_cpu_seconds_total=self._own_cost.cpu_seconds_total,
            daemon_vcpu_ratio=self._own_cost.vcpu_ratio,
            daemon_resident_bytes=self._own_cost.resident_bytes,
            injected_faults=reading.injected_faults,
        )
        return self._energy.derive(self._rates.derive(snapshot, processes_read=whole))

    def _instance_now(self) -> Instance:
        """Returns the instance with the configured power; the same object until the source changes its own."""
        read = self._source.instance
        if read is not self._read_instance or self._instance.device_maximum_watts != self._device_max_watts:
            self._read_instance = read
            self._instance = replace(read, device_maximum_watts=self._device_max_watts)
        return self._instance

    def empty_snapshot(self) -> Snapshot:
        """Returns a snapshot without devices and processes, in place of one that could not be taken."""
        now_seconds = time.monotonic()
        return Snapshot(
            sequence=self._sequence,
            taken_at_unix_seconds=self._clock.at(now_seconds),
            taken_at_seconds=now_seconds,
            interval_seconds=self._interval_seconds,
            source=self._source.kind,
            instance=self._source.instance,
            devices=(),
            cores=(),
            processes=(),
            daemon_version=__version__,
            daemon_pid=os.getpid(),
        )

    def repeat(self, snapshot: Snapshot, warning: str) -> Snapshot:
        """Returns an earlier snapshot under the next sequence number, with a further warning."""
        self._sequence += 1
        return replace(snapshot, sequence=self._sequence, warnings=(warning, *snapshot.warnings))

    def _processes(self, now_seconds: float, found: tuple[Process, ...]) -> tuple[Process, ...]:
        """Returns all processes by PID: attached processes, and those that the source found with open devices.

        Values that a process reported take precedence. If a process has two connections, the one with cores counts.
        """
        records: dict[int, Process] = {}
        for lease in self._allocator.leases:
            attached = records.get(lease.pid)
            if attached is not None and not lease.count:  # at most one connection of a process holds cores
                continue
            if self._load and lease.synthetic:
                facts = self._load.facts(lease)
            else:
                facts = self._table.facts(lease.pid, lease.attached_at_unix_seconds)
                if lease.count:
                    facts = replace(facts, job=self._jobs.job_of(lease.pid, lease.attached_at_unix_seconds))
            records[lease.pid] = build_process(lease, facts, self._allocator.shape, now_seconds, self._interval_seconds)
        for process in found:
            record = records.get(process.pid)
            if record is not None and record.core_indices:
                records[process.pid] = replace(
                    record,
                    device_indices=tuple(sorted({*record.device_indices, *process.device_indices})),
                    runtime_version=record.runtime_version or process.runtime_version,
                )
            elif process.core_indices:
                job = self._jobs.job_of(process.pid, process.started_at_unix_seconds)
                records[process.pid] = process if job is None else replace(process, job=job)
            else:
                records[process.pid] = process
        self._jobs.forget_others(records)
        return tuple(records[pid] for pid in sorted(records))

    def _departure(self, lease: CoreLease) -> Departure:
        """Returns the last record of an ended process. Uses cached facts, because its PID may be reused."""
        facts = self._load.facts(lease) if self._load and lease.synthetic else self._table.last_facts(lease.pid)
        record = build_process(lease, facts, self._allocator.shape, time.monotonic(), self._interval_seconds)
        has_final_report = lease.has_final_report if lease.report is not None and not lease.synthetic else None
        return Departure(lease.token, record, reported_usage(lease), has_final_report)


def with_attached(
    cores: tuple[NeuronCore, ...], found: tuple[Process, ...], leases: Iterable[CoreLease]
) -> tuple[tuple[NeuronCore, ...], tuple[Process, ...]]:
    """Returns the cores and processes that the source found, corrected by the leases.

    An attached process owns exactly the cores of its lease, even if the source found other cores.
    """
    claims = {core: lease.pid for lease in leases for core in lease.physical_cores()}
    if not claims:
        return cores, found
    attached = set(claims.values())
    owned = tuple(_assign_owner(core, claims.get(core.index), attached) for core in cores)
    owner_of = {core.index: core.owner_pid for core in owned}
    return owned, tuple(_drop_foreign_cores(process, owner_of) for process in found)


def _assign_owner(core: NeuronCore, claimed_by: int | None, attached: set[int]) -> NeuronCore:
    if claimed_by is not None:
        return replace(core, owner_pid=claimed_by, candidate_pids=(), inferred_fields=())
    if core.owner_pid in attached:
        return replace(core, owner_pid=None, inferred_fields=())
    if attached.isdisjoint(core.candidate_pids):
        return core
    return replace(core, candidate_pids=tuple(pid for pid in core.candidate_pids if pid not in attached))


def _drop_foreign_cores(process: Process, owner_of: dict[int, int | None]) -> Process:
    """Returns a process that the source found, without the cores that leases give to other processes."""
    own_indices = tuple(core for core in process.core_indices if owner_of.get(core) == process.pid)
    if own_indices == process.core_indices:
        return process
    lnc = process.logical_neuroncore_config
    return replace(
        process,
        core_indices=own_indices,
        neuroncore_indices=tuple(dict.fromkeys(core // lnc for core in own_indices)),
        inferred_fields=process.inferred_fields if own_indices else (),
    )


# One report, or one reading of the devices, may be late.
_SILENT_INTERVALS = 3.0
_SILENT_SECONDS = 3.0


def longest_silence_seconds(interval_seconds: float) -> float:
    """Returns the age from which a process counts as silent, and the state of the devices as unknown."""
    return max(_SILENT_SECONDS, _SILENT_INTERVALS * interval_seconds)


def build_process(
    lease: CoreLease, facts: ProcessFacts, shape: HostShape, now_seconds: float, interval_seconds: float
) -> Process:
    """Builds the record of a lease's process, without rates. `now_seconds` is CLOCK_MONOTONIC."""
    report = lease.report
    identity = Process(
        pid=lease.pid,
        uid=lease.uid,
        user=lease.user,
        command=facts.command,
        tag=lease.tag,
        runtime_version=lease.runtime_version,
        started_at_unix_seconds=facts.started_at_unix_seconds,
        attached_at_unix_seconds=lease.attached_at_unix_seconds,
        synthetic=lease.synthetic,
        logical_neuroncore_config=lease.lnc,
        core_indices=tuple(lease.physical_cores()),
        neuroncore_indices=tuple(lease.logical_cores),
        device_indices=lease.devices(shape),
        resident_bytes=facts.resident_bytes,
        cpu_user_seconds_total=facts.cpu_user_seconds_total,
        cpu_system_seconds_total=facts.cpu_system_seconds_total,
        job=facts.job,
    )
    if report is None:
        return identity
    return replace(
        identity,
        host_memory=report.host_memory,
        models=tuple(_to_host_indices(loaded, lease, shape) for loaded in report.models),
        executions=report.executions,
        errors=report.errors,
        total_latency_histogram=report.total_latency_histogram,
        device_latency_histogram=report.device_latency_histogram,
        training=report.training,
        operators=report.operators,
        advice=report.advice,
        served_models=tuple(_to_host_placements(served, lease.first) for served in report.served_models),
        counted_since_seconds=report.counted_since_seconds,
        core_work=_work(lease) if report.counted_since_seconds is not None else (),
        measured_at_seconds=report.measured_at_seconds,
        reporting=now_seconds - report.measured_at_seconds <= longest_silence_seconds(interval_seconds),
    )


def _work(lease: CoreLease) -> tuple[CoreWork, ...]:
    """Returns the busy time and FLOP of each core of a lease; () before the first report."""
    if not lease.cores:
        return ()
    reports = (lease.cores.get(local_index, _NOTHING) for local_index in range(lease.count))
    return tuple(CoreWork(report.busy_seconds_total, report.flop_total) for report in reports)


_NOTHING = CoreReport()


def _to_host_placements(served: ServedModel, first_core: int) -> ServedModel:
    """Converts the core indices of a served model from the process's numbering to the host's."""
    if not served.placements or not first_core:
        return served
    placements = (replace(each, neuroncore_index=first_core + each.neuroncore_index) for each in served.placements)
    return replace(served, placements=tuple(placements))


def _to_host_indices(loaded: LoadedModel, lease: CoreLease, shape: HostShape) -> LoadedModel:
    """Converts the core indices of a model's subgraphs from the process's numbering to the host's."""
    return replace(
        loaded,
        subgraphs=tuple(
            replace(
                subgraph,
                neuroncore_index=lease.first + subgraph.neuroncore_index,
                device_index=shape.device_of((lease.first + subgraph.neuroncore_index) * lease.lnc),
            )
            for subgraph in loaded.subgraphs
        ),
    )
