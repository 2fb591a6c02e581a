"""Finds the jobs of a snapshot, their state, stalled collectives and stragglers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.device import NeuronCore
from neurontools.model.finding import Finding, FindingKind
from neurontools.model.process import STEP_PARTS, WAIT_PART, Process, age_seconds
from neurontools.model.representation import repr_of_fields
from neurontools.model.serving import ServedModel, request_models, request_p99_seconds, requests_per_second
from neurontools.model.snapshot import Snapshot
from neurontools.util.units import max_known, mean_known, sum_known

_MOST_RANKS_HERE = 1024  # limit for `ranks_here`, which a process reports; no host has more cores


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job, with the cores that it holds."""

    process: Process
    cores: tuple[NeuronCore, ...]  # physical cores

    __repr__ = repr_of_fields("process")

    @property
    def number(self) -> int | None:
        """The global rank of the process in its job; None: unknown."""
        return self.process.job.rank if self.process.job is not None else None

    @property
    def utilization_ratio(self) -> float | None:
        """Mean utilization of the rank's cores; None if unknown for all of them."""
        return mean_known([core.utilization_ratio for core in self.cores])

    @property
    def device_memory_bytes(self) -> int | None:
        """Device memory in use on the rank's cores, in bytes; None if unknown for all of them."""
        return sum_known([core.memory.total_bytes for core in self.cores])

    @property
    def steps_per_second(self) -> float | None:
        """Training steps per second; None if the process does not report them."""
        counters, rates = self.process.training, self.process.training_rates
        return rates.steps_per_second if counters is not None and counters.steps_total and rates is not None else None

    @property
    def requests_per_second(self) -> float | None:
        """Requests per second of the process; None if unknown, or if it serves no requests."""
        return requests_per_second(self.process.served_models)

    @property
    def request_p99_seconds(self) -> float | None:
        """99th percentile of the recent request latency, of the slowest model; None without requests."""
        return request_p99_seconds(self.process.served_models)

    @property
    def last_execution_at_unix_seconds(self) -> float | None:
        """Unix time when the last execution on the rank's cores finished."""
        return _latest([core.last_execution_at_unix_seconds for core in self.cores])

    @property
    def compiling_since_seconds(self) -> float | None:
        """CLOCK_MONOTONIC when the rank began to wait for a program; None: not waiting, or not reporting."""
        counters = self.process.training if self.process.reporting else None
        return None if counters is None else counters.compiling_since_seconds

    @property
    def last_step_at_seconds(self) -> float | None:
        """CLOCK_MONOTONIC at the end of the rank's last step; None: no step yet, or not reported."""
        counters = self.process.training
        return None if counters is None else counters.last_step_at_seconds


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The processes of one job on this host, or a single process without a job. Unknown values are None."""

    name: str | None  # name of the job; None for a process without a known job
    ranks: tuple[Rank, ...]  # the job's processes, at least one, sorted by rank, then by PID
    findings: tuple[Finding, ...] = ()  # findings on the job's processes, highest severity first

    __repr__ = repr_of_fields("name", "ranks")

    @property
    def is_several(self) -> bool:
        """Whether more than one process of the job is on this host."""
        return len(self.ranks) > 1

    @property
    def cores(self) -> tuple[NeuronCore, ...]:
        """Physical cores of the job's processes."""
        return tuple([core for rank in self.ranks for core in rank.cores])

    @property
    def neuroncore_indices(self) -> tuple[int, ...]:
        """Indices of the logical cores of the job's processes, ascending, each under the LNC of its process."""
        return tuple(sorted({index for rank in self.ranks for index in rank.process.neuroncore_indices}))

    @property
    def device_indices(self) -> tuple[int, ...]:
        """Indices of the devices of the job's processes, ascending."""
        return tuple(sorted({index for rank in self.ranks for index in rank.process.device_indices}))

    @property
    def users(self) -> tuple[str, ...]:
        """Names of the known users of the job's processes, sorted."""
        return tuple(sorted({rank.process.user for rank in self.ranks if rank.process.user is not None}))

    @property
    def world_size(self) -> int | None:
        """Number of the job's ranks on all hosts; None: unknown."""
        return world_size(rank.process for rank in self.ranks)

    @property
    def run_id(self) -> str | None:
        """Identifies the run of the job across hosts. None if unknown, or if the processes belong to several runs."""
        run_ids = {rank.process.job.run_id if rank.process.job is not None else None for rank in self.ranks}
        return run_ids.pop() if len(run_ids) == 1 else None

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the job are on this host; also true if the world size is unknown."""
        return self.world_size is None or len(self.ranks) >= self.world_size

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that the launcher started on this host, but that hold no cores. Empty if not reported."""
        there = {rank.number for rank in self.ranks}
        started: set[int] = set()
        for rank in self.ranks:
            job = rank.process.job
            if job is not None and job.first_rank_here is not None and job.ranks_here is not None:
                started.update(range(job.first_rank_here, job.first_rank_here + min(job.ranks_here, _MOST_RANKS_HERE)))
        return tuple(sorted(started - there))

    @property
    def recent_steps(self) -> JobSteps | None:
        """Recent step times of the job's ranks; None unless all ranks report recent steps."""
        return recent_steps([rank.process for rank in self.ranks])

    @property
    def utilization_ratio(self) -> float | None:
        """Mean utilization of the job's cores; None if unknown for all of them."""
        return mean_known([core.utilization_ratio for rank in self.ranks for core in rank.cores])

    @property
    def flops_per_second(self) -> float | None:
        """Total FLOPS of the job's cores; None if unknown for all of them."""
        return sum_known([core.flops_per_second for rank in self.ranks for core in rank.cores])

    def mfu_ratio(self, peak_flops_per_core: float | None) -> float | None:
        """Returns the FLOPS of the job's cores as a ratio of their peak; None if the FLOPS or the peak are unknown."""
        flops, count = self.flops_per_second, len(self.cores)
        return flops / (peak_flops_per_core * count) if flops is not None and peak_flops_per_core and count else None

    @property
    def device_memory_bytes(self) -> int | None:
        """Device memory in use on the job's cores, in bytes; None if unknown for all of them."""
        return sum_known([core.memory.total_bytes for rank in self.ranks for core in rank.cores])

    @property
    def steps_per_second(self) -> float | None:
        """Training steps per second of the slowest rank that reports them. Synchronized ranks have the same rate."""
        return min((steps for rank in self.ranks if (steps := rank.steps_per_second) is not None), default=None)

    @property
    def executions_per_second(self) -> float | None:
        """Total executions per second of the job's processes; None if unknown for all of them."""
        return sum_known(rank.process.executions_per_second for rank in self.ranks)

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        """The models that the job's processes serve."""
        return tuple([served for rank in self.ranks for served in rank.process.served_models])

    @property
    def requests_per_second(self) -> float | None:
        """Requests per second of all processes of the job; None if unknown, or if the job serves no requests."""
        return sum_known(rank.requests_per_second for rank in self.ranks)

    @property
    def request_p99_seconds(self) -> float | None:
        """99th percentile of the recent request latency, of the slowest process and model; None without requests."""
        return max_known(rank.request_p99_seconds for rank in self.ranks)

    @property
    def last_request_at_seconds(self) -> float | None:
        """CLOCK_MONOTONIC at the end of the job's last request; None if it serves no requests."""
        return _latest(served.last_request_at_seconds for served in request_models(self.served_models))

    @property
    def last_execution_at_unix_seconds(self) -> float | None:
        """Unix time when the last execution on the job's cores finished."""
        return _latest([core.last_execution_at_unix_seconds for rank in self.ranks for core in rank.cores])

    @property
    def compiling_since_seconds(self) -> float | None:
        """CLOCK_MONOTONIC when the longest-waiting rank began to wait for a program; None: no rank waits."""
        return _earliest(rank.compiling_since_seconds for rank in self.ranks)

    @property
    def last_step_at_seconds(self) -> float | None:
        """CLOCK_MONOTONIC at the end of the last step of the rank that is furthest behind; None: not reported."""
        return _earliest(rank.last_step_at_seconds for rank in self.ranks)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """Returns the seconds from `last_step_at_seconds` to this CLOCK_MONOTONIC time."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def running_jobs(snapshot: Snapshot) -> tuple[RunningJob, ...]:
    """Returns all jobs of a snapshot, sorted by lowest PID. Leaves out observers (see `uses_cores`)."""
    found = snapshot.health.findings if snapshot.health is not None else ()
    return tuple(
        RunningJob(
            processes[0].job_name,
            tuple(Rank(process, snapshot.cores_of(process)) for process in sort_by_rank(processes)),
            _about(found, processes) if found else (),
        )
        for processes in group_processes_by_job(filter(uses_cores, snapshot.processes))
    )


def largest_first(jobs: Iterable[RunningJob]) -> list[RunningJob]:
    """Sorts jobs by their number of NeuronCores, the most first, then by name."""
    return sorted(jobs, key=lambda job: (-len(job.neuroncore_indices), job.name or ""))


def world_size(processes: Iterable[Process]) -> int | None:
    """Returns the world size that the processes report; None if no process does, or if they disagree."""
    world_sizes = {process.job.world_size for process in processes if process.job is not None} - {None}
    return world_sizes.pop() if len(world_sizes) == 1 else None


def recent_steps(processes: Sequence[Process]) -> JobSteps | None:
    """Returns the recent step times of a job's processes; None unless all processes report recent steps."""
    recent = []
    for process in processes:
        steps = process.recent_steps
        if steps is None:
            return None
        rank = process.job.rank if process.job is not None else None
        recent.append(
            RankSteps(rank, process.pid, steps.part_seconds, steps.least_wait_seconds, steps.most_wait_seconds)
        )
    return combine_rank_steps(recent) if recent else None


def group_processes_by_job(processes: Iterable[Process]) -> list[list[Process]]:
    """Groups processes by job. Each process without a known job forms a group of its own."""
    found: dict[str | int, list[Process]] = {}
    for process in processes:
        found.setdefault(job_key(process), []).append(process)
    return list(found.values())


def job_key(process: Process) -> str | int:
    """Returns the name of a process's job, or its PID if the job is unknown. Processes of one job have one key."""
    return process.pid if process.job is None else process.job.name


def uses_cores(process: Process) -> bool:
    """Returns whether a process holds cores or has loaded the runtime. Any other process is an observer."""
    return bool(process.core_indices) or process.runtime_version is not None


def sort_by_rank(processes: Iterable[Process]) -> list[Process]:
    """Sorts processes by rank. Processes without a rank come last, sorted by PID."""

    def sort_key(process: Process) -> tuple[bool, int, int]:
        rank = process.job.rank if process.job is not None else None
        return rank is None, rank or 0, process.pid

    return sorted(processes, key=sort_key)


def _about(findings: Sequence[Finding], processes: Sequence[Process]) -> tuple[Finding, ...]:
    pids = {process.pid for process in processes}
    return tuple(finding for finding in findings if finding.pid in pids or not pids.isdisjoint(finding.pids))


def _latest(moments: Iterable[float | None]) -> float | None:
    return max([moment for moment in moments if moment is not None], default=None)


def _earliest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


LEAST_RATIO = 0.1  # smallest delay that makes a rank a straggler, as a ratio of its step time
_IN_STEP_RATIO = 0.8  # least ratio of the shortest to the longest mean step time of synchronized ranks


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Recent step times of one rank, in seconds per step. `RecentSteps` explains the fields."""

    rank: int | None
    pid: int
    part_seconds: tuple[float, ...]  # mean time of each part of a step, in the order of STEP_PARTS
    least_wait_seconds: float
    most_wait_seconds: float

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Recent step times of all ranks of a job on one host, in seconds per step."""

    rank_count: int
    part_seconds: tuple[float, ...]  # time of each part of a step, mean over the ranks, in the order of STEP_PARTS
    least_step_seconds: float  # mean step time of the fastest rank
    median_step_seconds: float
    most_step_seconds: float
    busiest: RankSteps  # the rank that waits least in collectives
    others_wait_seconds: float | None  # shortest collective wait of the other ranks; None: no other ranks


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the other ranks of a job wait for.

    `gain_seconds` is the time that each step would save if this rank were as fast as the next slowest rank.
    `gain_ratio` is this time as a ratio of a step. `part` is the part of step time (STEP_PARTS) that takes longer than
    on other ranks; None if no single part does.
    """

    index: int  # index of the rank's host in the argument of `find_straggler`
    rank: RankSteps
    part: str | None
    gain_seconds: float
    gain_ratio: float


def combine_rank_steps(ranks: Sequence[RankSteps]) -> JobSteps:
    """Combines the step times of all ranks of a job on one host. `ranks` must not be empty."""
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
    """Returns the straggler among the ranks of a job on all hosts.

    Returns None if no rank clearly delays the others in both spans of `RecentSteps`, if the ranks are not synchronized,
    or if the job has only one rank.
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
    """Returns the part of step time that makes the straggler slow, or None if no part does.

    The part is the one that exceeds the mean of the other ranks most, if the excess is at least half of `gain_seconds`.
    """
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
    """Ranks of one host, divided into those that wait in a collective and those absent from it.

    A rank that does not report counts as absent.
    """

    collective: str  # the most common collective of the waiting ranks, "all_reduce"; "" if not reported
    waiting: tuple[Process, ...]
    absent: tuple[Process, ...]
    since_seconds: float  # CLOCK_MONOTONIC when the last of the waiting ranks entered the collective


def find_stalled_collective(processes: Sequence[Process]) -> StalledCollective | None:
    """Divides the ranks of a job into ranks in a collective and absent ranks; None if no rank is in a collective."""
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
    """Returns the CLOCK_MONOTONIC time when a process entered its current collective.

    Returns None if the process is in no collective or does not report.
    """
    counters = process.training if process.reporting else None
    return None if counters is None else counters.collective_since_seconds


def mean_step_seconds(process: Process) -> float | None:
    """Returns the mean duration of a process's steps; None if the process finished no step or reports no steps.

    The mean is over the recent steps if the process reports them, otherwise over all steps since it started counting.
    """
    counters, began = process.training, process.counted_since_seconds
    if process.recent_steps is not None:
        return process.recent_steps.step_seconds
    if counters is None or not counters.steps_total or counters.last_step_at_seconds is None or began is None:
        return None
    return max(0.0, counters.last_step_at_seconds - began) / counters.steps_total


_WAITING_STEPS = 4.0  # a job without a step for this many median step times counts as waiting
_WAITING_SECONDS = 10.0  # minimum time without a step before a job counts as waiting


class JobState(StrEnum):
    """What a job is doing. If several states apply, the first of this list counts. Newer daemons may send others."""

    COMPILING = "compiling"
    STUCK = "stuck"
    WAITING = "waiting"  # no recent step: in evaluation, writing a checkpoint, or waiting for input or other ranks
    STARTING = "starting"  # no step has finished yet
    TRAINING = "training"
    UNKNOWN = "unknown"  # no rank reports its steps
    SERVING = "serving"  # no step, but requests for inference


@dataclass(frozen=True, slots=True)
class JobActivity:
    """The state of a job, and for how long it has lasted (None: unknown).

    For TRAINING and WAITING, `seconds` is the time since the last step; for SERVING, since the last request.
    """

    state: JobState
    seconds: float | None


def job_activity(job: RunningJob, snapshot: Snapshot) -> JobActivity:
    """Returns the state of a job at the time of the snapshot."""
    now = snapshot.taken_at_seconds
    since_step = job.since_last_step_seconds(now)
    stuck = [finding.began_at_unix_seconds for finding in job.findings if finding.kind == FindingKind.STUCK]
    if job.compiling_since_seconds is not None:
        return JobActivity(JobState.COMPILING, age_seconds(job.compiling_since_seconds, now))
    if stuck:
        return JobActivity(JobState.STUCK, max(0.0, snapshot.taken_at_unix_seconds - min(stuck)))
    if since_step is None and job.last_request_at_seconds is not None:
        return JobActivity(JobState.SERVING, age_seconds(job.last_request_at_seconds, now))
    if since_step is None:
        counting = any(rank.process.training is not None for rank in job.ranks)
        return JobActivity(JobState.STARTING if counting else JobState.UNKNOWN, None)
    steps = job.recent_steps
    patience = max(_WAITING_SECONDS, _WAITING_STEPS * steps.median_step_seconds if steps is not None else 0.0)
    return JobActivity(JobState.WAITING if since_step >= patience else JobState.TRAINING, since_step)
