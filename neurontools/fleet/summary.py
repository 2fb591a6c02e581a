"""The summary of a host for fleet views. `summarize_host` derives it from a snapshot.

The classes have the fields of the messages with the same names in `neuron.proto`. An unknown value is None, never 0. A
summary has at most MOST_BYTES, whatever the snapshot contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from neurontools import catalog
from neurontools.model import (
    LogicalNeuronCore,
    Process,
    ServedModel,
    ServedModelRates,
    Severity,
    Snapshot,
    SourceKind,
    health,
    logical_cores,
)
from neurontools.model.jobs import (
    JobActivity,
    JobState,
    JobSteps,
    RunningJob,
    find_stalled_collective,
    job_activity,
    largest_first,
    running_jobs,
)
from neurontools.model.process import STEP_PARTS
from neurontools.model.representation import repr_of_fields
from neurontools.model.snapshot import MOST_DEVICES
from neurontools.rpc.convert import to_message
from neurontools.util.units import max_known, mean_known, sum_known


@dataclass(frozen=True, slots=True)
class DeviceCell:
    index: int
    is_present: bool
    severity: int | None  # highest `Severity` of the device's findings; None if unknown
    utilization_ratio: float | None  # mean of its cores
    held_neuroncore_count: int | None


@dataclass(frozen=True, slots=True)
class NeuronCoreUse:
    """The use of the logical NeuronCores of a host."""

    neuroncore_count: int
    held_count: int
    busy_count: int  # held, and used for at least BUSY_FROM_RATIO of the last period
    free_count: int  # a core that is neither held nor free is unknown
    utilization_ratio: float | None  # mean of the held cores
    flops_per_second: float | None  # of the held cores
    mfu_ratio: float | None  # of the held cores, relative to the bf16 peak


@dataclass(frozen=True, slots=True)
class SummaryFinding:
    """One of the gravest findings of a host. Findings of the same kind are combined."""

    kind: str
    severity: Severity
    reason: str  # shortened if long
    began_at_unix_seconds: float
    device_indices: tuple[int, ...]
    job: str | None
    synthetic: bool
    injected: bool


@dataclass(frozen=True, slots=True)
class HostSummary:
    """The state of one host at one time. NeuronCores are logical, under the host's default LNC.

    Many fields are None in summaries from Prometheus, because it may lack their series.
    """

    host_name: str
    instance_type: str
    instance_id: str | None
    ultraserver_id: str | None
    ultraserver_node_index: int | None
    source: SourceKind | None
    synthetic_load: str | None
    driver_version: str | None
    daemon_version: str | None
    sequence: int | None
    taken_at_unix_seconds: float
    taken_at_seconds: float | None  # time of the snapshot by the host's CLOCK_MONOTONIC
    interval_seconds: float | None
    is_judged: bool  # whether the daemon derives findings; if not, the health of the host is unknown
    critical_count: int  # number of critical findings; similar findings count once
    warning_count: int
    notice_count: int
    findings: tuple[SummaryFinding, ...]  # the gravest findings, possibly not all
    devices: tuple[DeviceCell, ...]  # sorted by index
    neuroncore_count: int | None
    held_neuroncore_count: int | None
    busy_neuroncore_count: int | None
    free_neuroncore_count: int | None  # number of free cores; a core that is neither held nor free is unknown
    utilization_ratio: float | None  # mean of the held cores
    flops_per_second: float | None
    mfu_ratio: float | None  # MFU of the held cores, relative to the bf16 peak
    device_memory_used_bytes: int | None
    device_memory_bytes: int | None
    process_count: int | None  # processes with cores
    job_count: int | None
    jobs: tuple[SummaryJob, ...]  # the jobs with the most cores, possibly not all
    further_users: tuple[str, ...]  # users of jobs that `jobs` lacks, possibly not all
    user_count: int | None  # number of users of all jobs; None if unknown, or if the reader may not see users
    problem_count: int | None  # number of values that the daemon could not read
    requests_per_second: float | None = None  # of all processes; None if they serve no requests
    request_p99_seconds: float | None = None  # recent request latency of the slowest process and model
    models: tuple[ModelTotals, ...] = ()  # the served models with the most device memory, possibly not all
    model_count: int | None = None  # number of all served models

    __repr__ = repr_of_fields("host_name", "instance_type", "sequence", "critical_count", "warning_count")

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the findings; None if unknown."""
        if not self.is_judged:
            return None
        if self.critical_count:
            return Severity.CRITICAL
        if self.warning_count:
            return Severity.WARNING
        if any(device.severity is None for device in self.devices):
            return None
        return Severity.NOTICE if self.notice_count else Severity.OK

    @property
    def users(self) -> tuple[str, ...]:
        """The known users of the jobs. `user_count` may be higher."""
        users = [user for job in self.jobs for user in job.users]
        return tuple([user for user in dict.fromkeys((*users, *self.further_users)) if user])

    @property
    def without_users(self) -> HostSummary:
        """A copy without users, for readers that may not see them."""
        jobs = tuple([replace(job, users=(), user_count=None) for job in self.jobs])
        return replace(self, jobs=jobs, further_users=(), user_count=None)

    def check(self) -> None:
        """Raises ValueError for values that no host can have."""
        for job in self.jobs:
            job.check()
        parts: tuple[HostSummary | SummaryJob | DeviceCell | SummaryFinding | ModelTotals, ...]
        parts = (self, *self.jobs, *self.devices, *self.findings, *self.models)
        numbers = [
            value for part in parts for name in part.__slots__ if isinstance(value := getattr(part, name), float)
        ]
        if not all(map(isfinite, numbers)):
            raise ValueError("it has an invalid number")
        if len(self.devices) > MOST_DEVICES:
            raise ValueError(f"it has too many devices ({len(self.devices)})")
        if any(cell.severity is not None and cell.severity > max(Severity) for cell in self.devices):
            raise ValueError("it has an invalid severity")

    @property
    def unknown_neuroncore_count(self) -> int:
        """The number of cores that are neither known to be held nor known to be free."""
        counted = (self.held_neuroncore_count or 0) + (self.free_neuroncore_count or 0)
        return max(0, (self.neuroncore_count or 0) - counted)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of the largest job with a known rate."""
        return next((job.steps_per_second for job in self.jobs if job.steps_per_second is not None), None)


@dataclass(frozen=True, slots=True)
class ModelTotals:
    """A served model in all processes of a host. None means unknown, or that no request ended lately."""

    name: str
    neuroncore_count: int | None  # logical cores that the model is loaded on; None also if it is unloaded
    requests_per_second: float | None = None
    request_p99_seconds: float | None = None  # recent request latency of the slowest process
    queue_depth: int | None = None  # requests that wait now
    queue_wait_seconds: float | None = None  # recent mean wait of a request before its execution
    device_memory_bytes: int | None = None


def model_totals(processes: Iterable[Process]) -> list[ModelTotals]:
    """Returns the served models of processes by name, those with the most device memory first."""
    return combine_models(_totals(served) for process in processes for served in process.served_models)


def combine_models(parts: Iterable[ModelTotals]) -> list[ModelTotals]:
    """Combines the totals of models with the same name. Returns those with the most device memory first."""
    by_name: dict[str, list[ModelTotals]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    combined = [
        ModelTotals(
            name,
            sum_known(part.neuroncore_count for part in same),
            sum_known(part.requests_per_second for part in same),
            max_known(part.request_p99_seconds for part in same),
            sum_known(part.queue_depth for part in same),
            _mean_wait_seconds(same),
            sum_known(part.device_memory_bytes for part in same),
        )
        for name, same in by_name.items()
    ]
    return sorted(combined, key=lambda model: (-(model.device_memory_bytes or 0), model.name))


def _mean_wait_seconds(parts: Sequence[ModelTotals]) -> float | None:
    """Returns the mean wait over the requests of all parts."""
    waits = [(part.queue_wait_seconds, part.requests_per_second) for part in parts]
    known = [(wait, rate) for wait, rate in waits if wait is not None and rate]
    return sum(wait * rate for wait, rate in known) / sum(rate for _, rate in known) if known else None


def _totals(served: ServedModel) -> ModelTotals:
    rates = served.rates or ServedModelRates()
    latency = rates.total_latency
    return ModelTotals(
        served.name,
        len(served.neuroncore_indices) or None,
        rates.requests_per_second,
        None if latency is None else latency.p99_seconds,
        served.queue_depth,
        rates.queue_wait_seconds,
        served.device_memory_bytes,
    )


MOST_RUNS = 2
_MOST_RANKS_HERE = 1024
_HIGHEST_RANK = 2**20


@dataclass(frozen=True, slots=True)
class JobStandstill:
    """The ranks of a job on one host while at least one of them waits in a collective."""

    collective: str  # the collective in which most of the waiting ranks wait
    waiting_rank_count: int
    absent_rank_count: int  # number of ranks that have not entered the collective, or do not report
    absent_ranks: tuple[int, ...]  # some or all of the absent ranks
    seconds: float  # waiting time of the rank that began to wait last


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """The part of a job that runs on this host. A summary has only the largest jobs."""

    name: str | None  # name of the job; None for a process without a known job
    neuroncore_count: int  # logical cores
    rank_count: int  # on this host
    world_size: int | None
    utilization_ratio: float | None
    steps_per_second: float | None
    mfu_ratio: float | None
    severity: Severity  # highest severity of the findings on the job's processes
    run_id: str | None = None  # identifies the job across hosts; None if it is only on this host
    # from `encode_rank_runs`: the job's ranks on this host; empty if unknown or too scattered
    rank_runs: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()  # ranks that the launcher started here but that are missing; possibly not all
    state: str = JobState.UNKNOWN  # a value of `JobState`, or an unknown value of a newer daemon
    state_seconds: float | None = None  # seconds in this state; if waiting or training, seconds since the last step
    recent_steps: JobSteps | None = None  # recent step times; None if there are too few steps or not all ranks report
    standstill: JobStandstill | None = None  # the stalled collective; None unless the job is waiting or stuck in one
    users: tuple[str, ...] = ()  # owners of the job's processes, possibly not all
    user_count: int | None = None  # number of all owners; None if unknown, or if the reader may not see users
    requests_per_second: float | None = None  # of the processes on this host; None if they serve no requests
    request_p99_seconds: float | None = None  # recent request latency of the slowest process and model

    @property
    def ranks(self) -> frozenset[int] | None:
        """The ranks on this host; None if unknown."""
        runs = zip(self.rank_runs[::3], self.rank_runs[1::3], self.rank_runs[2::3], strict=False)
        found = [rank for first, step, count in runs for rank in range(first, first + step * count, step)]
        return frozenset(found) if found else None

    def check(self) -> None:
        """Raises ValueError for values that no host can have."""
        runs = self.rank_runs
        if len(runs) % 3 or len(runs) > 3 * MOST_RUNS or sum(runs[2::3]) > _MOST_RANKS_HERE or 0 in runs[1::3]:
            raise ValueError("it has invalid ranks")
        steps, standstill = self.recent_steps, self.standstill
        absent = standstill.absent_ranks if standstill is not None else ()
        if any(rank >= _HIGHEST_RANK for rank in (*runs, *self.missing_ranks, *absent)):
            raise ValueError("it has invalid ranks")
        if standstill is not None and not _is_time(standstill.seconds):
            raise ValueError("it has an invalid number")
        if steps is None:
            return
        if not len(steps.part_seconds) == len(steps.busiest.part_seconds) == len(STEP_PARTS):
            raise ValueError("it has other parts of steps; update the older side")
        numbers = [*steps.part_seconds, *steps.busiest.part_seconds]
        for part in (steps, steps.busiest):
            numbers += [value for name in part.__slots__ if isinstance(value := getattr(part, name), float)]
        if not all(map(_is_time, numbers)) or not 0 < steps.rank_count <= _MOST_RANKS_HERE:
            raise ValueError("it has invalid step times")


def _is_time(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0.0


def encode_rank_runs(ranks: Iterable[int | None]) -> tuple[int, ...]:
    """Encodes ranks as (first, step, count) triples. One triple can be a block of 64 ranks, or every eighth rank.

    Returns an empty tuple if a rank is unknown or the ranks are too scattered.
    """
    numbers = set(ranks)
    if None in numbers:
        return ()
    left = sorted(number for number in numbers if number is not None)
    runs: list[int] = []
    while left:
        first = left[0]
        step = left[1] - first if len(left) > 1 else 1
        count = 1
        while count < len(left) and left[count] == first + step * count:
            count += 1
        runs += (first, step, count)
        left = left[count:]
    return tuple(runs) if len(runs) <= 3 * MOST_RUNS else ()


MOST_FINDINGS = 3
MOST_JOBS = 3
MOST_MODELS = 3
MOST_BYTES = 1280  # limit of the encoded size; fits a complete summary of a host with 16 devices
BUSY_FROM_RATIO = 0.02  # utilization from which neuron-top draws a held core as busy
_MOST_INDICES = 16  # limit of indices in a list; no instance type has more devices
_MOST_MISSING = 4


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Limits on the UTF-8 bytes of texts, and on the numbers of jobs with step times, of users and of models."""

    host: int
    reason: int
    job: int
    word: int
    jobs_with_steps: int
    users_of_job: int
    further_users: int
    models: int


_LENGTHS = (
    _Lengths(48, 72, 32, 24, 2, 4, 8, MOST_MODELS),
    _Lengths(24, 36, 16, 12, 1, 1, 4, MOST_MODELS),
    _Lengths(24, 28, 16, 12, 1, 0, 0, 0),
)
"""Limits to try, from large to small. The last limits fit any host, and keep only the numbers of users and models."""
_LONGEST_USER = 32  # limit of useradd(8) for names; the same on all hosts, because views group hosts by user


def summarize_host(snapshot: Snapshot, host_name: str) -> HostSummary:
    """Summarizes a snapshot under this host name. Uses smaller limits until the summary fits in MOST_BYTES."""
    for longest in _LENGTHS[:-1]:
        summary = _summary(snapshot, host_name, longest)
        if to_message(summary).ByteSize() <= MOST_BYTES:
            return summary
    return _summary(snapshot, host_name, _LENGTHS[-1])


def _summary(snapshot: Snapshot, host_name: str, longest: _Lengths) -> HostSummary:
    instance = snapshot.instance
    cores = logical_cores(snapshot, max(1, instance.logical_neuroncore_config))
    found_jobs = largest_first(running_jobs(snapshot))
    found = health.group_alike(snapshot.health.findings if snapshot.health else ())
    counts = health.count_by_severity(snapshot)
    peak = catalog.peak_flops_per_core(instance.instance_type)
    use = neuroncore_use(cores, peak)
    node = instance.ultraserver_node
    users = list(dict.fromkeys(user for job in found_jobs for user in _owners(job)))
    jobs = tuple(
        _job(job, snapshot, peak, longest, with_steps=at < longest.jobs_with_steps)
        for at, job in enumerate(found_jobs[:MOST_JOBS])
    )
    models = model_totals(snapshot.processes)
    listed_users = {user for job in found_jobs[:MOST_JOBS] for user in _owners(job)}
    further = [user for user in users if user not in listed_users]
    return HostSummary(
        host_name=_truncate(host_name, longest.host),
        instance_type=_truncate(instance.instance_type, longest.word),
        instance_id=_cut_or_none(instance.instance_id, longest.word),
        ultraserver_id=_cut_or_none(instance.ultraserver_id, longest.word),
        ultraserver_node_index=None if node is None else node.index,
        source=snapshot.source,
        synthetic_load=_cut_or_none(snapshot.synthetic_load, longest.word),
        driver_version=_cut_or_none(instance.driver_version, longest.word),
        daemon_version=_truncate(snapshot.daemon_version, longest.word),
        sequence=snapshot.sequence,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds,
        taken_at_seconds=snapshot.taken_at_seconds,
        interval_seconds=snapshot.interval_seconds,
        is_judged=snapshot.health is not None,
        critical_count=counts.get(Severity.CRITICAL, 0),
        warning_count=counts.get(Severity.WARNING, 0),
        notice_count=counts.get(Severity.NOTICE, 0),
        findings=tuple(
            SummaryFinding(
                kind=_truncate(finding.kind, longest.word),
                severity=finding.severity,
                reason=_truncate(finding.reason, longest.reason),
                began_at_unix_seconds=finding.began_at_unix_seconds,
                device_indices=indices[:_MOST_INDICES],
                job=_cut_or_none(finding.job, longest.job),
                synthetic=finding.synthetic,
                injected=finding.injected,
            )
            for finding, indices in found[:MOST_FINDINGS]
        ),
        devices=device_cells(snapshot, cores),
        neuroncore_count=use.neuroncore_count,
        held_neuroncore_count=use.held_count,
        busy_neuroncore_count=use.busy_count,
        free_neuroncore_count=use.free_count,
        utilization_ratio=use.utilization_ratio,
        flops_per_second=use.flops_per_second,
        mfu_ratio=use.mfu_ratio,
        device_memory_used_bytes=sum_known(core.memory.total_bytes for core in snapshot.cores),
        device_memory_bytes=sum(device.memory_bytes for device in snapshot.devices),
        process_count=sum(len(job.ranks) for job in found_jobs),
        job_count=len(found_jobs),
        jobs=jobs,
        further_users=_users(further[: longest.further_users]),
        user_count=len(users) if users or not found_jobs else None,
        problem_count=len(snapshot.warnings),
        requests_per_second=sum_known(job.requests_per_second for job in found_jobs),
        request_p99_seconds=max_known(job.request_p99_seconds for job in found_jobs),
        models=tuple(replace(model, name=_truncate(model.name, longest.job)) for model in models[: longest.models]),
        model_count=len(models),
    )


def neuroncore_use(cores: Sequence[LogicalNeuronCore], peak_flops_per_core: float | None) -> NeuronCoreUse:
    """Counts the held, busy and free cores. `peak_flops_per_core` is the bf16 peak of a physical core."""
    owned = [core for core in cores if core.is_free is False]
    flops = sum_known(core.flops_per_second for core in owned)
    peak_flops = (peak_flops_per_core or 0.0) * sum(len(core.cores) for core in owned)
    return NeuronCoreUse(
        neuroncore_count=len(cores),
        held_count=len(owned),
        busy_count=sum((core.utilization_ratio or 0.0) >= BUSY_FROM_RATIO for core in owned),
        free_count=sum(core.is_free is True for core in cores),
        utilization_ratio=mean_known(core.utilization_ratio for core in owned),
        flops_per_second=flops,
        mfu_ratio=flops / peak_flops if flops is not None and peak_flops else None,
    )


def device_cells(snapshot: Snapshot, cores: Sequence[LogicalNeuronCore]) -> tuple[DeviceCell, ...]:
    """Returns all devices, present or missing, with the highest severity of their findings."""
    on_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in cores:
        on_device.setdefault(core.device_index, []).append(core)
    verdicts = {verdict.device_index: verdict.severity for verdict in health.verdicts(snapshot)}
    return tuple(
        DeviceCell(
            index=index,
            is_present=device is not None,
            severity=None if (severity := verdicts.get(index)) is None else int(severity),
            utilization_ratio=mean_known(core.utilization_ratio for core in on_device.get(index, ())),
            held_neuroncore_count=sum(core.is_free is False for core in on_device.get(index, ())),
        )
        for index, device in list(snapshot.devices_by_index.items())[:MOST_DEVICES]
    )


def _job(
    job: RunningJob, snapshot: Snapshot, peak_flops_per_core: float | None, longest: _Lengths, *, with_steps: bool
) -> SummaryJob:
    does, owners = job_activity(job, snapshot), _owners(job)
    return SummaryJob(
        name=_cut_or_none(job.name, longest.job),
        neuroncore_count=len(job.neuroncore_indices),
        rank_count=len(job.ranks),
        world_size=job.world_size,
        utilization_ratio=job.utilization_ratio,
        steps_per_second=job.steps_per_second,
        mfu_ratio=job.mfu_ratio(peak_flops_per_core),
        severity=max((finding.severity for finding in job.findings), default=Severity.OK),
        run_id=job.run_id,
        rank_runs=encode_rank_runs(rank.number for rank in job.ranks),
        missing_ranks=job.missing_ranks[:_MOST_MISSING],
        state=does.state,
        state_seconds=does.seconds,
        recent_steps=job.recent_steps if with_steps and (job.run_id is not None or job.is_several) else None,
        standstill=_job_standstill(job, does, snapshot, longest),
        users=_users(owners[: longest.users_of_job]),
        user_count=len(owners) or None,
        requests_per_second=job.requests_per_second,
        request_p99_seconds=job.request_p99_seconds,
    )


def _owners(job: RunningJob) -> list[str]:
    """Returns the users of a job: names, or UIDs of users without a name on this host, as in containers."""
    processes = [rank.process for rank in job.ranks]
    found = {process.user or (None if process.uid is None else str(process.uid)) for process in processes}
    return sorted(user for user in found if user is not None)


def _users(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(_truncate(name, _LONGEST_USER) for name in names)


def _job_standstill(job: RunningJob, does: JobActivity, snapshot: Snapshot, longest: _Lengths) -> JobStandstill | None:
    """Returns the waiting and the absent ranks of a stalled collective. None unless the job is waiting or stuck."""
    found = find_stalled_collective([rank.process for rank in job.ranks])
    if found is None or does.state not in (JobState.WAITING, JobState.STUCK):
        return None
    numbers = [process.job.rank for process in found.absent if process.job is not None]
    return JobStandstill(
        _truncate(found.collective, longest.word),
        len(found.waiting),
        len(found.absent),
        tuple(number for number in numbers if number is not None)[:_MOST_MISSING],
        max(0.0, snapshot.taken_at_seconds - found.since_seconds),
    )


def _truncate(text: str, longest_bytes: int) -> str:
    """Shortens a text to a number of UTF-8 bytes, with an ellipsis."""
    octets = text.encode("utf-8", "replace")
    if len(octets) <= longest_bytes:
        return octets.decode()
    return octets[: longest_bytes - len("…".encode())].decode("utf-8", "ignore") + "…"


def _cut_or_none(text: str | None, longest_bytes: int) -> str | None:
    return None if text is None else _truncate(text, longest_bytes)
