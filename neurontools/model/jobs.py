"""Jobs: which processes work together, and which of them the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.device import NeuronCore
from neurontools.model.finding import Finding, FindingKind
from neurontools.model.process import STEP_PARTS, WAIT_PART, Process, age_seconds
from neurontools.model.representation import repr_of_fields
from neurontools.model.snapshot import Snapshot
from neurontools.util.units import mean_known, sum_known

_MOST_RANKS_HERE = 1024  # more cores than any host has


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job, with the cores it holds."""

    process: Process
    cores: tuple[NeuronCore, ...]  # physical

    __repr__ = repr_of_fields("process")

    @property
    def number(self) -> int | None:
        """Its rank in the job, on all hosts; None: not known."""
        return self.process.job.rank if self.process.job is not None else None

    @property
    def utilization_ratio(self) -> float | None:
        """The mean of its cores; None when it is unknown for all of them."""
        return mean_known(core.utilization_ratio for core in self.cores)

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

    __repr__ = repr_of_fields("name", "ranks")

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
        return mean_known(core.utilization_ratio for core in self.cores)

    @property
    def flops_per_second(self) -> float | None:
        """The sum over its cores."""
        return sum_known(core.flops_per_second for core in self.cores)

    def mfu_ratio(self, peak_flops_per_core: float | None) -> float | None:
        """FLOPS of its cores as a share of their peak; None where either is not known."""
        flops, count = self.flops_per_second, len(self.cores)
        return flops / (peak_flops_per_core * count) if flops is not None and peak_flops_per_core and count else None

    @property
    def device_memory_bytes(self) -> int | None:
        """The sum over its cores."""
        return sum_known(core.memory.total_bytes for core in self.cores)

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps of the slowest rank that tells them: ranks in step all have the same."""
        return min((steps for rank in self.ranks if (steps := rank.steps_per_second) is not None), default=None)

    @property
    def executions_per_second(self) -> float | None:
        """The sum over its processes."""
        return sum_known(rank.process.executions_per_second for rank in self.ranks)

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


def running_jobs(snapshot: Snapshot) -> tuple[RunningJob, ...]:
    """All jobs of a host, by their lowest PID. Processes that only watch have none."""
    found = snapshot.health.findings if snapshot.health is not None else ()
    return tuple(
        RunningJob(
            processes[0].job.name if processes[0].job is not None else None,
            tuple(Rank(process, snapshot.cores_of(process)) for process in sort_by_rank(processes)),
            _about(found, processes) if found else (),
        )
        for processes in group_processes_by_job(filter(uses_cores, snapshot.processes))
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
    return combine_rank_steps(told) if told else None


def group_processes_by_job(processes: Iterable[Process]) -> list[list[Process]]:
    """The processes that work together; one of which no job is known is alone."""
    found: dict[str | int, list[Process]] = {}
    for process in processes:
        found.setdefault(process.pid if process.job is None else process.job.name, []).append(process)
    return list(found.values())


def uses_cores(process: Process) -> bool:
    """Whether it holds cores or has the runtime; any other process only watches."""
    return bool(process.core_indices) or process.runtime_version is not None


def sort_by_rank(processes: Iterable[Process]) -> list[Process]:
    """In the order of ranks; those without one last, by PID."""

    def place(process: Process) -> tuple[bool, int, int]:
        rank = process.job.rank if process.job is not None else None
        return rank is None, rank or 0, process.pid

    return sorted(processes, key=place)


def _about(findings: Sequence[Finding], processes: Sequence[Process]) -> tuple[Finding, ...]:
    pids = {process.pid for process in processes}
    return tuple(finding for finding in findings if finding.pid in pids or not pids.isdisjoint(finding.pids))


def _latest(moments: Iterable[float | None]) -> float | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _earliest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


LEAST_RATIO = 0.1  # of a step: less is not worth a word
_IN_STEP_RATIO = 0.8  # of the longest steps: whose are shorter is not held up by those who make these


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What the latest steps of one rank took, seconds a step; `RecentSteps` tells more of the fields."""

    rank: int | None
    pid: int
    part_seconds: tuple[float, ...]  # in the order of STEP_PARTS
    least_wait_seconds: float
    most_wait_seconds: float

    @property
    def step_seconds(self) -> float:
        """How long a step took."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class JobSteps:
    """What the latest steps of the ranks of a job on one host took, all of which tell; seconds a step."""

    rank_count: int
    part_seconds: tuple[float, ...]  # the mean of its ranks, in the order of STEP_PARTS
    least_step_seconds: float  # of its ranks, the shortest steps
    median_step_seconds: float
    most_step_seconds: float
    busiest: RankSteps  # who waits least
    others_wait_seconds: float | None  # that each of the others waits at least; None: there are no others


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for.

    `gain_seconds`: by how much each step of the job would be shorter if this rank were as quick as the next slowest;
    `gain_ratio` is its share of a step. `part` is the name in STEP_PARTS of what takes it longer; None: all a little.
    """

    index: int  # of its host, in what was compared
    rank: RankSteps
    part: str | None
    gain_seconds: float
    gain_ratio: float


def combine_rank_steps(ranks: Sequence[RankSteps]) -> JobSteps:
    """The ranks of one host together; at least one."""
    busiest = min(ranks, key=lambda rank: rank.most_wait_seconds)
    steps = sorted(rank.step_seconds for rank in ranks)
    return JobSteps(
        rank_count=len(ranks),
        part_seconds=tuple(sum(each) / len(ranks) for each in zip(*(r.part_seconds for r in ranks), strict=True)),
        least_step_seconds=steps[0],
        median_step_seconds=steps[len(steps) // 2],
        most_step_seconds=steps[-1],
        busiest=busiest,
        others_wait_seconds=min((r.least_wait_seconds for r in ranks if r is not busiest), default=None),
    )


def find_straggler(hosts: Sequence[JobSteps]) -> Straggler | None:
    """The rank that holds up the others, of all ranks of a job, by host.

    None where none clearly does in each of two spans, where the ranks are not in step, or where there is only one.
    """
    if sum(host.rank_count for host in hosts) < 2:
        return None
    if min(host.least_step_seconds for host in hosts) < _IN_STEP_RATIO * max(host.most_step_seconds for host in hosts):
        return None
    index = min(range(len(hosts)), key=lambda each: hosts[each].busiest.most_wait_seconds)
    found = hosts[index].busiest
    waits = [host.others_wait_seconds for host in hosts if host.others_wait_seconds is not None]
    waits += [host.busiest.least_wait_seconds for at, host in enumerate(hosts) if at != index]
    gain_seconds = min(waits) - found.most_wait_seconds
    if gain_seconds <= 0.0 or gain_seconds < LEAST_RATIO * found.step_seconds:
        return None
    return Straggler(index, found, _part(found, hosts, gain_seconds), gain_seconds, gain_seconds / found.step_seconds)


def _part(found: RankSteps, hosts: Sequence[JobSteps], gain_seconds: float) -> str | None:
    """The part that takes this rank longer than the mean of the others; half of what they wait, at least."""
    count = sum(host.rank_count for host in hosts)
    longer = {}
    for position, part in enumerate(STEP_PARTS):
        if position == WAIT_PART:
            continue
        mine = found.part_seconds[position]
        of_all = sum(host.part_seconds[position] * host.rank_count for host in hosts)
        longer[part.name] = mine - (of_all - mine) / (count - 1)
    name = max(longer, key=lambda each: longer[each])
    return name if longer[name] >= gain_seconds / 2 else None


@dataclass(frozen=True, slots=True)
class StalledCollective:
    """Ranks of one host, of which at least one waits in a collective. One that does not report has not come."""

    collective: str  # in which most of them wait: "all_reduce"; "" where they don't tell
    waiting: tuple[Process, ...]
    absent: tuple[Process, ...]
    since_seconds: float  # CLOCK_MONOTONIC since when the last of those that wait has been waiting


def find_stalled_collective(processes: Sequence[Process]) -> StalledCollective | None:
    """How it stands with the ranks of a job; None where none of them is known to be in a collective."""
    since = {process.pid: at for process in processes if (at := in_collective_since(process)) is not None}
    if not since:
        return None
    waiting = tuple(process for process in processes if process.pid in since)
    kinds = Counter(process.training.latest_collective or "" for process in waiting if process.training is not None)
    return StalledCollective(
        kinds.most_common(1)[0][0],
        waiting,
        tuple(process for process in processes if process.pid not in since),
        max(since.values()),
    )


def in_collective_since(process: Process) -> float | None:
    """CLOCK_MONOTONIC since when it is in a collective; None: it is in none, or nobody tells now."""
    counters = process.training if process.reporting else None
    return None if counters is None else counters.collective_since_seconds


def mean_step_seconds(process: Process) -> float | None:
    """How long its steps take; None: it has made none, or does not tell.

    Where its latest ones are not known by themselves it is the mean since it began, which its start is a part of.
    """
    counters, began = process.training, process.counted_since_seconds
    if process.recent_steps is not None:
        return process.recent_steps.step_seconds
    if counters is None or not counters.steps_total or counters.last_step_at_seconds is None or began is None:
        return None
    return max(0.0, counters.last_step_at_seconds - began) / counters.steps_total


_WAITING_STEPS = 4.0  # steps as long as the latest ones: who has made none for so long does something else
_WAITING_SECONDS = 10.0  # at least: less is no news


class JobState(StrEnum):
    """What is first counts for a job whose ranks differ; a newer daemon may know more."""

    COMPILING = "compiling"
    STUCK = "stuck"
    WAITING = "waiting"  # it has trained, and makes no step: evaluation, a checkpoint, its input, or for other ranks
    STARTING = "starting"  # no step yet
    TRAINING = "training"
    UNKNOWN = "unknown"  # nobody tells its steps


@dataclass(frozen=True, slots=True)
class JobActivity:
    """A state, and since how many seconds: of training and waiting since the last step; None: not known."""

    state: JobState
    seconds: float | None


def job_activity(job: RunningJob, snapshot: Snapshot) -> JobActivity:
    """What a job of this snapshot does."""
    now = snapshot.taken_at_seconds
    since_step = job.since_last_step_seconds(now)
    stuck = [finding.began_at_unix_seconds for finding in job.findings if finding.kind == FindingKind.STUCK]
    if job.compiling_since_seconds is not None:
        return JobActivity(JobState.COMPILING, age_seconds(job.compiling_since_seconds, now))
    if stuck:
        return JobActivity(JobState.STUCK, max(0.0, snapshot.taken_at_unix_seconds - min(stuck)))
    if since_step is None:
        counting = any(rank.process.training is not None for rank in job.ranks)
        return JobActivity(JobState.STARTING if counting else JobState.UNKNOWN, None)
    steps = job.recent_steps
    patience = max(_WAITING_SECONDS, _WAITING_STEPS * steps.median_step_seconds if steps is not None else 0.0)
    return JobActivity(JobState.WAITING if since_step >= patience else JobState.TRAINING, since_step)
