"""Jobs over hosts, as far as summaries tell of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neurontools.fleet.states import HostState, Link
from neurontools.fleet.summary import SummaryJob
from neurontools.model import Severity

_OF_ALL_HOSTS = ("Slurm job ",)  # what other names stand for, a process or a pod, is of one host alone


@dataclass(frozen=True, slots=True)
class FleetJob:
    """Processes that work together, on one host or on several."""

    name: str
    host_names: tuple[str, ...]
    neuroncore_count: int
    rank_count: int  # that run on these hosts
    world_size: int | None
    utilization_ratio: float | None  # mean of its cores
    steps_per_second: float | None  # of the slowest host that tells them
    severity: Severity


def fleet_jobs(states: Iterable[HostState]) -> tuple[FleetJob, ...]:
    """The jobs of the live hosts, those with most cores first. A process of which no job is known is none."""
    found: dict[tuple[str, str], list[tuple[str, SummaryJob]]] = {}
    for state in states:
        if state.link is not Link.LIVE or state.summary is None:
            continue
        for job in state.summary.jobs:
            if job.name is not None:
                host = "" if job.name.startswith(_OF_ALL_HOSTS) else state.place.name
                found.setdefault((job.name, host), []).append((state.place.name, job))
    jobs = [_merged(name, parts) for (name, _), parts in found.items()]
    return tuple(sorted(jobs, key=lambda job: (-job.neuroncore_count, job.name, job.host_names)))


def _merged(name: str, parts: list[tuple[str, SummaryJob]]) -> FleetJob:
    jobs = [job for _, job in parts]
    busy = [(job.utilization_ratio, job.neuroncore_count) for job in jobs]
    known = [(ratio * cores, cores) for ratio, cores in busy if ratio is not None and cores]
    sizes = {job.world_size for job in jobs} - {None}
    return FleetJob(
        name=name,
        host_names=tuple(host for host, _ in parts),
        neuroncore_count=sum(job.neuroncore_count for job in jobs),
        rank_count=sum(job.rank_count for job in jobs),
        world_size=sizes.pop() if len(sizes) == 1 else None,
        utilization_ratio=sum(ratio for ratio, _ in known) / sum(cores for _, cores in known) if known else None,
        steps_per_second=min((job.steps_per_second for job in jobs if job.steps_per_second is not None), default=None),
        severity=max(job.severity for job in jobs),
    )
