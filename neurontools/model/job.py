"""Jobs as they run on this host: which processes work together, what they do, and who of them is slow.

A pure function of a snapshot; views, documents and verdicts go by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.brief import showing
from neurontools.model.finding import Finding
from neurontools.model.neuroncore import NeuronCore
from neurontools.model.process import Process
from neurontools.model.snapshot import Snapshot

_SLOWER_RATIO = 0.9  # of the others' steps a second: below it, a rank is slower
_REPORT_SECONDS = 2.0  # by which the moments differ at most, at which two ranks count their steps
_LEAST_BEHIND_STEPS = 3  # ranks in step differ by one, and by what they do between their reports
_LEAST_WAIT_RATIO = 0.1  # of the time that others wait more in collectives: from it on, they wait for somebody
_FAST_STEPS_PER_SECOND = 10.0  # from here on, a period of a second has enough steps for shares of it to be compared
_LEAST_STEPS = 10  # for shares of the whole time to be compared


class Slowness(StrEnum):
    """Of what a slow rank has more than the others: the part of its time in which it does that."""

    COMPUTE = "compute"  # its core is busy, and not in a collective
    IDLE = "idle"  # its core waits for its host: for input, the compiler or the script


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
    def collective_ratio(self) -> float | None:
        """The share of the last period in collectives, waiting for others included; None for more than one core, whose
        times are told together.
        """
        rates = self.process.training_rates
        return rates.collective_ratio if rates is not None and len(self.process.neuroncore_indices) == 1 else None

    @property
    def collective_ratio_so_far(self) -> float | None:
        """The same since it began to count."""
        process, counters = self.process, self.process.training
        if counters is None or process.measured_at_seconds is None or process.counted_since_seconds is None:
            return None
        seconds = process.measured_at_seconds - process.counted_since_seconds
        waited = counters.collective_seconds_total
        is_one = len(process.neuroncore_indices) == 1
        return waited / seconds if waited is not None and seconds > 0 and is_one else None

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
class SlowestRank:
    """The rank that the others of its job wait for, and why; None: what is known tells no reason."""

    rank: Rank
    why: Slowness | None


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
        told = {rank.process.job.world_size for rank in self.ranks if rank.process.job is not None} - {None}
        return told.pop() if len(told) == 1 else None

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its cores."""
        return _mean(core.utilization_ratio for core in self.cores)

    @property
    def flops_per_second(self) -> float | None:
        """The sum over its cores."""
        return _sum(core.flops_per_second for core in self.cores)

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

    @property
    def slowest(self) -> SlowestRank | None:
        """The rank that the others wait for; None where they tell too little, and where none is clearly slower.

        Ranks that are not in step: the one that steps least often. Ranks in step: the one that waits least in
        collectives, if the others wait clearly more, for they wait for it.
        """
        telling = [rank for rank in self.ranks if rank.process.reporting and rank.steps_per_second is not None]
        if len(telling) < 2:
            return None
        found, others = _least(telling, _steps)
        behind = _median([_steps_so_far(rank) for rank in others]) - _steps_so_far(found)
        usual = _median([_steps(rank) for rank in others])
        if _steps(found) < _SLOWER_RATIO * usual and behind >= _LEAST_BEHIND_STEPS + usual * _REPORT_SECONDS:
            return SlowestRank(found, None)
        if _steps(found) >= _FAST_STEPS_PER_SECOND:
            waits = {id(rank): rank.collective_ratio for rank in telling}
        elif _steps_so_far(found) >= _LEAST_STEPS:
            waits = {id(rank): rank.collective_ratio_so_far for rank in telling}
        else:
            return None
        known = {key: share for key, share in waits.items() if share is not None}
        if len(known) < len(telling):
            return None
        found, others = _least(telling, lambda rank: known[id(rank)])
        if _median([known[id(rank)] for rank in others]) - known[id(found)] < _LEAST_WAIT_RATIO:
            return None
        return SlowestRank(found, _why(found, others) if _steps(found) >= _FAST_STEPS_PER_SECOND else None)


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


def _why(found: Rank, others: Sequence[Rank]) -> Slowness | None:
    """What it has more of than the others' median: computing, or a core that does nothing."""
    shares = [(rank.utilization_ratio, rank.collective_ratio) for rank in (found, *others)]
    known = [(1.0 - busy, max(0.0, busy - waits)) for busy, waits in shares if busy is not None and waits is not None]
    if len(known) < len(shares):
        return None
    (idle, computing), *rest = known
    more_idle = idle - _median([share for share, _ in rest])
    more_computing = computing - _median([share for _, share in rest])
    if max(more_idle, more_computing) <= 0.0:
        return None
    return Slowness.IDLE if more_idle > more_computing else Slowness.COMPUTE


def _steps(rank: Rank) -> float:
    return rank.steps_per_second or 0.0


def _steps_so_far(rank: Rank) -> int:
    return rank.process.training.steps_total if rank.process.training is not None else 0


def _least(ranks: Sequence[Rank], key: Callable[[Rank], float]) -> tuple[Rank, list[Rank]]:
    """The rank that has least of something, and the others."""
    found = min(ranks, key=key)
    return found, [rank for rank in ranks if rank is not found]


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


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
