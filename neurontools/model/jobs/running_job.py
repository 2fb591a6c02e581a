"""Jobs as they run on this host: which processes work together, and what they do.

A pure function of a snapshot; views, documents and verdicts go by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neurontools.model.brief import showing
from neurontools.model.finding import Finding
from neurontools.model.jobs.slow_rank import JobSteps, RankSteps, job_steps
from neurontools.model.neuroncore import NeuronCore
from neurontools.model.process import Process
from neurontools.model.snapshot import Snapshot
from neurontools.model.training import age_seconds

_MOST_RANKS_HERE = 1024  # more cores than any host has


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job, with the cores it holds."""

    process: Process
    cores: tuple[NeuronCore, ...]  # physical

    __repr__ = showing("process")

    @property
    def number(self) -> int | None:
        """Its rank in the job, on all hosts; None: not known."""
        return self.process.job.rank if self.process.job is not None else None

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its cores; None when it is unknown for all of them."""
        return _mean(core.utilization_ratio for core in self.cores)

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps; None where its runtime tells none."""
        counters, rates = self.process.training, self.process.training_rates
        return rates.steps_per_second if counters is not None and counters.steps_total and rates is not None else None

    @property
    def last_execution_at_unix_seconds(self) -> float | None:
        """The end of the latest finished execution on its cores."""
        return _latest(core.last_execution_at_unix_seconds for core in self.cores)

    @property
    def compiling_since_seconds(self) -> float | None:
        """CLOCK_MONOTONIC since when it waits for a program; None: for none, or nobody tells now."""
        counters = self.process.training if self.process.reporting else None
        return None if counters is None else counters.compiling_since_seconds

    @property
    def last_step_at_seconds(self) -> float | None:
        """CLOCK_MONOTONIC of the end of its latest step; None: there is none, or nobody tells."""
        counters = self.process.training
        return None if counters is None else counters.last_step_at_seconds


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Processes of this host that work together, or one that works alone. None is unknown."""

    name: str | None  # as in `Job`; None: a process of which no job is known
    ranks: tuple[Rank, ...]  # at least one; by rank, those without one last, by PID
    findings: tuple[Finding, ...] = ()  # what the daemon found wrong with its processes, gravest first

    __repr__ = showing("name", "ranks")

    @property
    def is_several(self) -> bool:
        """Whether more than one process of it is on this host."""
        return len(self.ranks) > 1

    @property
    def cores(self) -> tuple[NeuronCore, ...]:
        """The physical cores that its processes hold."""
        return tuple([core for rank in self.ranks for core in rank.cores])

    @property
    def neuroncore_indices(self) -> tuple[int, ...]:
        """The same as logical cores, ascending, each under the LNC of its process."""
        return tuple(sorted({index for rank in self.ranks for index in rank.process.neuroncore_indices}))

    @property
    def device_indices(self) -> tuple[int, ...]:
        """The devices of these cores."""
        return tuple(sorted({index for rank in self.ranks for index in rank.process.device_indices}))

    @property
    def users(self) -> tuple[str, ...]:
        """Who runs it, as far as that is known."""
        return tuple(sorted({rank.process.user for rank in self.ranks if rank.process.user is not None}))

    @property
    def world_size(self) -> int | None:
        """Its ranks on all hosts."""
        return world_size(rank.process for rank in self.ranks)

    @property
    def run_id(self) -> str | None:
        """As in `Job`; None too where its processes are of several runs."""
        told = {rank.process.job.run_id if rank.process.job is not None else None for rank in self.ranks}
        return told.pop() if len(told) == 1 else None

    @property
    def is_whole(self) -> bool:
        """Whether all its ranks are on this host, as far as anybody tells."""
        return self.world_size is None or len(self.ranks) >= self.world_size

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that its launcher started on this host and that hold no cores; () where it does not tell."""
        there = {rank.number for rank in self.ranks}
        started: set[int] = set()
        for rank in self.ranks:
            job = rank.process.job
            if job is not None and job.first_rank_here is not None and job.ranks_here is not None:
                started.update(range(job.first_rank_here, job.first_rank_here + min(job.ranks_here, _MOST_RANKS_HERE)))
        return tuple(sorted(started - there))

    @property
    def recent_steps(self) -> JobSteps | None:
        """What the latest steps of its ranks took; None where not all of them tell."""
        return recent_steps([rank.process for rank in self.ranks])

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its cores."""
        return _mean(core.utilization_ratio for core in self.cores)

    @property
    def flops_per_second(self) -> float | None:
        """The sum over its cores."""
        return _sum(core.flops_per_second for core in self.cores)

    def mfu_ratio(self, peak_flops_per_core: float | None) -> float | None:
        """FLOPS of its cores as a share of their peak; None where either is not known."""
        flops, count = self.flops_per_second, len(self.cores)
        return flops / (peak_flops_per_core * count) if flops is not None and peak_flops_per_core and count else None

    @property
    def device_memory_bytes(self) -> int | None:
        """The sum over its cores."""
        known = [size for core in self.cores if (size := core.memory.total_bytes) is not None]
        return sum(known) if known else None

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps of the slowest rank that tells them: ranks in step all have the same."""
        return min((steps for rank in self.ranks if (steps := rank.steps_per_second) is not None), default=None)

    @property
    def executions_per_second(self) -> float | None:
        """The sum over its processes."""
        return _sum(rank.process.executions_per_second for rank in self.ranks)

    @property
    def last_execution_at_unix_seconds(self) -> float | None:
        """The end of the latest finished execution on its cores."""
        return _latest(rank.last_execution_at_unix_seconds for rank in self.ranks)

    @property
    def compiling_since_seconds(self) -> float | None:
        """CLOCK_MONOTONIC since when one of its ranks waits for a program, of several the longest; None: none does."""
        return _earliest(rank.compiling_since_seconds for rank in self.ranks)

    @property
    def last_step_at_seconds(self) -> float | None:
        """CLOCK_MONOTONIC by when all its ranks that tell steps had ended their latest one."""
        return _earliest(rank.last_step_at_seconds for rank in self.ranks)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """How long ago that was at `now_seconds` of CLOCK_MONOTONIC."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def jobs(snapshot: Snapshot) -> tuple[RunningJob, ...]:
    """All jobs of a host, by their lowest PID. Processes that only watch have none."""
    found = snapshot.health.findings if snapshot.health is not None else ()
    return tuple(
        RunningJob(
            processes[0].job.name if processes[0].job is not None else None,
            tuple(Rank(process, snapshot.cores_of(process)) for process in by_rank(processes)),
            _about(found, processes) if found else (),
        )
        for processes in together(filter(uses_cores, snapshot.processes))
    )


def world_size(processes: Iterable[Process]) -> int | None:
    """The ranks on all hosts of the job of these processes; None: nobody tells, or they don't say the same."""
    told = {process.job.world_size for process in processes if process.job is not None} - {None}
    return told.pop() if len(told) == 1 else None


def recent_steps(processes: Sequence[Process]) -> JobSteps | None:
    """What the latest steps of the ranks of a job took; None where not all of them tell."""
    told = []
    for process in processes:
        steps = process.recent_steps
        if steps is None:
            return None
        rank = process.job.rank if process.job is not None else None
        told.append(RankSteps(rank, process.pid, steps.part_seconds, steps.least_wait_seconds, steps.most_wait_seconds))
    return job_steps(told) if told else None


def together(processes: Iterable[Process]) -> list[list[Process]]:
    """The processes that work together; one of which no job is known is alone."""
    found: dict[str | int, list[Process]] = {}
    for process in processes:
        found.setdefault(process.pid if process.job is None else process.job.name, []).append(process)
    return list(found.values())


def uses_cores(process: Process) -> bool:
    """Whether it holds cores or has the runtime; any other process only watches."""
    return bool(process.core_indices) or process.runtime_version is not None


def by_rank(processes: Iterable[Process]) -> list[Process]:
    """In the order of ranks; those without one last, by PID."""

    def place(process: Process) -> tuple[bool, int, int]:
        rank = process.job.rank if process.job is not None else None
        return rank is None, rank or 0, process.pid

    return sorted(processes, key=place)


def _about(findings: Sequence[Finding], processes: Sequence[Process]) -> tuple[Finding, ...]:
    pids = {process.pid for process in processes}
    return tuple(finding for finding in findings if finding.pid in pids or not pids.isdisjoint(finding.pids))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _latest(moments: Iterable[float | None]) -> float | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _earliest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
