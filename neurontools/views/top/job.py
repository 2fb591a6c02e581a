"""A job in the document of neuron-top."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import Snapshot
from neurontools.model.jobs.job_state import doing
from neurontools.model.jobs.running_job import RunningJob
from neurontools.model.training import age_seconds
from neurontools.util.process_text import script_text
from neurontools.views.job_rows import slowest


@dataclass(frozen=True, slots=True)
class TopJob:
    """Processes of this host that work together, or one that works alone."""

    name: str | None  # None: a process of which no job is known
    run_id: str | None  # the same on all hosts of one run; None: it is of this host alone, as far as its launcher tells
    pids: tuple[int, ...]  # by rank, then PID
    ranks: tuple[int | None, ...]  # of these processes
    world_size: int | None  # ranks on all hosts
    missing_ranks: tuple[int, ...]  # that its launcher started here and that hold no cores
    state: str  # training, starting, compiling, waiting, stuck, unknown
    state_seconds: float | None  # since when; of training and waiting, since its last step
    users: tuple[str, ...]
    script: str  # of its first process, with its arguments
    neuroncores: tuple[int, ...]
    neuron_devices: tuple[int, ...]
    utilization_ratio: float | None
    flops_per_second: float | None
    mfu_ratio: float | None
    device_memory_bytes: int | None
    executions_per_second: float | None
    steps_per_second: float | None  # of its slowest rank
    step_seconds: float | None  # how long its latest steps took, of the median rank
    slowest_pid: int | None  # whom the others wait for; None: nobody, or not known
    slowest_rank: int | None
    slowest_because: str | None  # the part of its steps that takes longer: compute, host, input wait, transfer, compile
    since_last_execution_seconds: float | None
    since_last_step_seconds: float | None  # of the rank whose latest step is longest ago
    compiling_for_seconds: float | None  # None: none of its ranks waits for a program, or nobody tells
    finding_kinds: tuple[str, ...]  # what is wrong with its processes, gravest first
    is_synthetic: bool


def job_part(job: RunningJob, snapshot: Snapshot, peak_flops_per_core: float | None) -> TopJob:
    """What the document has of a job of this snapshot."""
    slow, last, steps, does = slowest(job), job.last_execution_at_unix_seconds, job.recent_steps, doing(job, snapshot)
    processes = [rank.process for rank in job.ranks]
    return TopJob(
        name=job.name,
        run_id=job.run_id,
        pids=tuple(process.pid for process in processes),
        ranks=tuple(rank.number for rank in job.ranks),
        world_size=job.world_size,
        missing_ranks=job.missing_ranks,
        state=does.state,
        state_seconds=does.seconds,
        users=job.users,
        script=script_text(processes[0].command),
        neuroncores=job.neuroncore_indices,
        neuron_devices=job.device_indices,
        utilization_ratio=job.utilization_ratio,
        flops_per_second=job.flops_per_second,
        mfu_ratio=job.mfu_ratio(peak_flops_per_core),
        device_memory_bytes=job.device_memory_bytes,
        executions_per_second=job.executions_per_second,
        steps_per_second=job.steps_per_second,
        step_seconds=None if steps is None else steps.median_step_seconds,
        slowest_pid=slow.rank.process.pid if slow is not None else None,
        slowest_rank=slow.rank.number if slow is not None else None,
        slowest_because=slow.part if slow is not None else None,
        since_last_execution_seconds=None if last is None else max(0.0, snapshot.taken_at_unix_seconds - last),
        since_last_step_seconds=job.since_last_step_seconds(snapshot.taken_at_seconds),
        compiling_for_seconds=age_seconds(job.compiling_since_seconds, snapshot.taken_at_seconds),
        finding_kinds=tuple(dict.fromkeys(str(finding.kind) for finding in job.findings)),
        is_synthetic=any(process.synthetic for process in processes),
    )
