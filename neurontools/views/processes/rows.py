"""The rows of the process list: jobs and processes that pass the filter, in order, with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from neurontools.model.jobs.running_job import Rank, RunningJob
from neurontools.model.training import age_seconds
from neurontools.views.drawing.figures import Figures, ProcessFigures
from neurontools.views.drawing.scene import Scene
from neurontools.views.job_rows import JobRow, job_key, rows_of
from neurontools.views.processes.columns import in_order
from neurontools.views.processes.filter import InvalidFilter, parse_filter

_Same = TypeVar("_Same")


def process_rows(scene: Scene, *, every: bool = False) -> list[JobRow]:
    """The rows of the current tab, with the jobs that are unfolded now, or `every` job unfolded.

    Of a job those processes count that pass the filter, and are listed where that is a part of them; all of them while
    the filter is not valid. Jobs are in order among the processes that are alone, and so are the processes of a job.
    """
    of_tab = shown = {figures.pid: figures for figures in scene.figures.shown(scene.pid)}
    if scene.filter_text:
        try:
            passes = parse_filter(scene.filter_text)
            shown = {pid: figures for pid, figures in shown.items() if passes(figures)}
        except InvalidFilter:
            pass
    orders = ((scene.sort, scene.is_descending), (scene.then_sort, scene.is_then_descending))
    parts: list[tuple[ProcessFigures, RunningJob, tuple[Rank, ...]]] = []
    for job in scene.figures.jobs:
        ranks = tuple([rank for rank in job.ranks if rank.process.pid in shown])
        if ranks:
            one = shown[ranks[0].process.pid] if len(ranks) == 1 else whole_job(scene.figures, job, ranks)
            parts.append((one, job, ranks))
    rows: list[JobRow] = []
    for _, job, ranks in in_order(parts, orders, lambda part: part[0]):
        is_part = len(ranks) < sum(rank.process.pid in of_tab for rank in job.ranks)
        is_open = every or is_part or job_key(job) in scene.unfolded
        listed = in_order(ranks, orders, lambda rank: shown[rank.process.pid]) if is_open else ranks
        rows += rows_of(job, listed, is_open=is_open)
    return rows


def figures_of(figures: Figures, row: JobRow) -> ProcessFigures:
    """The figures of a process, or of all listed processes of a job as if they were one."""
    if row.rank is not None:
        return figures.by_pid[row.rank.process.pid]
    return whole_job(figures, row.job, row.ranks)


def whole_job(figures: Figures, of: RunningJob, ranks: tuple[Rank, ...]) -> ProcessFigures:
    """Some processes of a job as if they were one, under the lowest PID.

    Cores, models, memory and counts are theirs together; steps those of the slowest, the latency that of the slowest
    too. What differs from one to the other is None, and the user then `several`.
    """
    job = replace(of, ranks=ranks)
    parts = [figures.by_pid[rank.process.pid] for rank in job.ranks]
    processes = [part.process for part in parts]
    first = processes[0]
    last = job.last_execution_at_unix_seconds
    latencies = [process.total_latency for process in processes if process.total_latency is not None]
    process = replace(
        first,
        pid=min(process.pid for process in processes),
        tag=job.name or "",
        user="several" if len(job.users) > 1 else next(iter(job.users), None),
        uid=_same([process.uid for process in processes]),
        core_indices=tuple(core.index for core in job.cores),
        neuroncore_indices=job.neuroncore_indices,
        device_indices=job.device_indices,
        models=tuple(model for process in processes for model in process.models),
        attached_at_unix_seconds=_same([process.attached_at_unix_seconds for process in processes]),
        attribution=_same([process.attribution for process in processes]),
        executions_per_second=job.executions_per_second,
        total_latency=max(latencies, key=lambda latency: latency.p99_seconds, default=None),
        reporting=all(process.reporting for process in processes),
        synthetic=any(process.synthetic for process in processes),
        inferred_fields=tuple({name: None for process in processes for name in process.inferred_fields}),
    )
    return ProcessFigures(
        process=process,
        core_count=len(job.neuroncore_indices),
        utilization_ratio=job.utilization_ratio,
        flops_per_second=job.flops_per_second,
        mfu_ratio=job.mfu_ratio(figures.peak_flops_per_core),
        device_memory_bytes=job.device_memory_bytes,
        host_memory_bytes=_sum([part.host_memory_bytes for part in parts]),
        errors_total=_sum([part.errors_total for part in parts]),
        failed_executions_total=_sum([part.failed_executions_total for part in parts]),
        since_last_execution_seconds=None if last is None else max(0.0, figures.snapshot.taken_at_unix_seconds - last),
        steps_per_second=job.steps_per_second,
        since_last_step_seconds=job.since_last_step_seconds(figures.snapshot.taken_at_seconds),
        compiling_for_seconds=age_seconds(job.compiling_since_seconds, figures.snapshot.taken_at_seconds),
    )


def _same(values: Sequence[_Same | None]) -> _Same | None:
    return values[0] if all(value == values[0] for value in values) else None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
