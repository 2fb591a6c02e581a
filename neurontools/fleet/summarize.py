"""Summarizes the snapshot of a host. The size of the summary is limited, whatever the snapshot contains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neurontools import catalog
from neurontools.fleet.summary import (
    MOST_DEVICES,
    DeviceCell,
    HostSummary,
    JobStandstill,
    SummaryFinding,
    SummaryJob,
    encode_rank_runs,
)
from neurontools.model import LogicalNeuronCore, Severity, Snapshot, health, logical_cores
from neurontools.model.jobs import (
    JobActivity,
    JobState,
    RunningJob,
    find_stalled_collective,
    job_activity,
    running_jobs,
)
from neurontools.rpc.convert import to_message
from neurontools.util.units import mean_known, sum_known

MOST_FINDINGS = 3
MOST_JOBS = 3
MOST_BYTES = 1200  # limit of the encoded size; fits a complete summary of a host with 16 devices
_MARK = "…"
BUSY_FROM_RATIO = 0.02  # utilization from which neuron-top draws a held core as busy
_MOST_INDICES = 16  # no instance type has more devices
_MOST_MISSING = 4


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Limits on the UTF-8 bytes of texts, on the number of jobs with step times, and on the number of users."""

    host: int
    reason: int
    job: int
    word: int
    jobs_with_steps: int
    users_of_job: int
    further_users: int


_LENGTHS = (_Lengths(48, 72, 32, 24, 2, 4, 8), _Lengths(24, 36, 16, 12, 1, 1, 4), _Lengths(24, 28, 16, 12, 1, 0, 0))
"""Limits to try, from large to small. With the last one, any host fits; it keeps only the number of users."""
_LONGEST_USER = 32  # limit of useradd(8); the same on all hosts, because views group hosts by user


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
    found_jobs = sorted(running_jobs(snapshot), key=lambda job: (-len(job.neuroncore_indices), job.name or ""))
    found = health.group_alike(snapshot.health.findings if snapshot.health else ())
    counts = health.count_by_severity(snapshot)
    owned = [core for core in cores if core.is_free is False]
    peak = catalog.peak_flops_per_core(instance.instance_type)
    flops = sum_known(core.flops_per_second for core in owned)
    held_physical = sum(len(core.cores) for core in owned)
    node = instance.ultraserver_node
    users = list(dict.fromkeys(user for job in found_jobs for user in _owners(job)))
    jobs = tuple(
        _job(job, snapshot, peak, longest, with_steps=at < longest.jobs_with_steps)
        for at, job in enumerate(found_jobs[:MOST_JOBS])
    )
    of_told = {user for job in found_jobs[:MOST_JOBS] for user in _owners(job)}
    further = [user for user in users if user not in of_told]
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
            )
            for finding, indices in found[:MOST_FINDINGS]
        ),
        devices=_cells(snapshot, cores),
        neuroncore_count=len(cores),
        held_neuroncore_count=len(owned),
        busy_neuroncore_count=sum((core.utilization_ratio or 0.0) >= BUSY_FROM_RATIO for core in owned),
        free_neuroncore_count=sum(core.is_free is True for core in cores),
        utilization_ratio=mean_known(core.utilization_ratio for core in owned),
        flops_per_second=flops,
        mfu_ratio=flops / (peak * held_physical) if flops is not None and peak and held_physical else None,
        device_memory_used_bytes=sum_known(core.memory.total_bytes for core in snapshot.cores),
        device_memory_bytes=sum(device.memory_bytes for device in snapshot.devices),
        process_count=sum(len(job.ranks) for job in found_jobs),
        job_count=len(found_jobs),
        jobs=jobs,
        further_users=_users(further[: longest.further_users]),
        user_count=len(users) if users or not found_jobs else None,
        problem_count=len(snapshot.warnings),
    )


def _cells(snapshot: Snapshot, cores: Sequence[LogicalNeuronCore]) -> tuple[DeviceCell, ...]:
    """Returns all devices, present or missing, with the highest severity of their findings."""
    on_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in cores:
        on_device.setdefault(core.device_index, []).append(core)
    present = {device.index for device in snapshot.devices}
    verdicts = {verdict.device_index: verdict.severity for verdict in health.verdicts(snapshot)}
    return tuple(
        DeviceCell(
            index=index,
            is_present=index in present,
            severity=None if (severity := verdicts.get(index)) is None else int(severity),
            utilization_ratio=mean_known(core.utilization_ratio for core in on_device.get(index, ())),
            held_neuroncore_count=sum(core.is_free is False for core in on_device.get(index, ())),
        )
        for index in sorted(present | set(verdicts))[:MOST_DEVICES]
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
    )


def _owners(job: RunningJob) -> list[str]:
    """Returns the users of a job: names, or UIDs of users without a name on this host, as in containers."""
    processes = [rank.process for rank in job.ranks]
    found = {process.user or (None if process.uid is None else str(process.uid)) for process in processes}
    return sorted(user for user in found if user is not None)


def _users(names: Iterable[str]) -> tuple[str, ...]:
    return tuple([_truncate(name, _LONGEST_USER) for name in names])


def _job_standstill(job: RunningJob, does: JobActivity, snapshot: Snapshot, longest: _Lengths) -> JobStandstill | None:
    """Returns the ranks that wait in a collective and those they wait for. None unless the job waits or is stuck."""
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
    return octets[: longest_bytes - len(_MARK.encode())].decode("utf-8", "ignore") + _MARK


def _cut_or_none(text: str | None, longest_bytes: int) -> str | None:
    return None if text is None else _truncate(text, longest_bytes)
