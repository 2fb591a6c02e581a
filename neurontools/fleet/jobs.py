"""Jobs across hosts. Merges parts of a job on several hosts if the launcher says that they are one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.fleet.states import HostLink, HostState
from neurontools.fleet.summary import SummaryJob
from neurontools.model import Severity
from neurontools.model.jobs import JobState, find_straggler
from neurontools.util.units import max_known, sum_known

MOST_MISSING = 16
MOST_ABSENT = 4  # limit of absent ranks listed per host
STUCK_SECONDS = 60.0  # the default of neurond
_STATES = tuple(JobState)


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that should run but is on none of the live hosts."""

    rank: int
    host_name: str | None  # host on which the rank was started; None if unknown
    is_host_lost: bool


@dataclass(frozen=True, slots=True)
class SlowFleetRank:
    """The straggler: the rank that the others wait for. `neurontools.model.jobs` explains how a straggler is found."""

    rank: int | None
    host_name: str
    pid: int | None
    part: str | None  # the slow part of the rank's step, one of STEP_PARTS; None if all parts are slightly slow
    gain_seconds: float
    gain_ratio: float


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that runs but has not reached the collective in which other ranks wait."""

    rank: int
    host_name: str


@dataclass(frozen=True, slots=True)
class FleetStandstill:
    """The ranks that wait in a collective, and the ranks they wait for, while no step completes."""

    collective: str  # name of the collective, from the host with the most waiting ranks
    waiting_rank_count: int
    absent_rank_count: int
    absent_ranks: tuple[AbsentRank, ...]  # the first absent ranks of each host, if rank numbers are known
    seconds: float  # waiting time of the rank that began to wait last


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Durations of the latest steps, over all ranks. Synchronized ranks have equal durations."""

    least: float | None
    median: float  # weighted median of the hosts' median step times; weights are the numbers of ranks
    most: float | None


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A job: processes that work together, on one or several hosts."""

    name: str
    run_id: str | None  # ID of the run across hosts; None if the launcher reports none
    host_names: tuple[str, ...]  # names of the job's hosts; empty if the feed does not know them
    host_count: int | None
    neuroncore_count: int
    rank_count: int  # ranks on these hosts
    world_size: int | None
    missing_ranks: tuple[MissingRank, ...]  # the lowest missing ranks, if rank numbers are known
    state: str  # a value of `JobState`
    state_seconds: float | None
    utilization_ratio: float | None  # mean of its cores
    steps_per_second: float | None  # step rate of the slowest host that reports one
    mfu_ratio: float | None  # mean of its cores
    step_seconds: StepSeconds | None
    slow_rank: SlowFleetRank | None
    standstill: FleetStandstill | None
    severity: Severity | None  # highest severity of the findings on the job's processes; None if unknown
    users: tuple[str, ...] = ()  # the users that the job's hosts report
    user_count: int | None = None  # number of all users, also of those not in `users`; None if unknown
    requests_per_second: float | None = None  # on all hosts; None if the job serves no requests
    request_p99_seconds: float | None = None  # recent request latency of the slowest process and model

    @property
    def missing_rank_count(self) -> int:
        return max(0, (self.world_size or 0) - self.rank_count)

    @property
    def without_users(self) -> FleetJob:
        """A copy without users, for readers that may not see them."""
        return replace(self, users=(), user_count=None)


@dataclass(frozen=True, slots=True)
class _Part:
    host_name: str
    job: SummaryJob


def fleet_jobs(states: Iterable[HostState]) -> tuple[FleetJob, ...]:
    """Returns the jobs of the live hosts, those with the most cores first. Omits processes without a known job."""
    found: dict[tuple[str, ...], list[_Part]] = {}
    lost: dict[str, list[_Part]] = {}
    for state in states:
        if state.summary is None:
            continue
        for job in state.summary.jobs:
            part = _Part(state.place.name, job)
            if state.link is not HostLink.LIVE:
                lost.setdefault(job.run_id or "", []).append(part)
            elif job.run_id is not None:
                found.setdefault((job.run_id,), []).append(part)
            elif job.name is not None:
                found.setdefault((state.place.name, job.name), []).append(part)
    jobs = []
    for parts in found.values():
        lost_parts = lost.get(parts[0].job.run_id or " ", [])
        jobs += [_merge(parts, lost_parts)] if _has_unique_ranks(parts) else [_merge([part], []) for part in parts]
    return tuple(sorted(jobs, key=lambda job: (-job.neuroncore_count, job.name, job.host_names)))


def _has_unique_ranks(parts: Sequence[_Part]) -> bool:
    """Whether each rank occurs in one part only. If a rank occurs twice, the parts are different runs."""
    ranks_of_parts = [ranks for part in parts if (ranks := part.job.ranks) is not None]
    return sum(map(len, ranks_of_parts)) == len(frozenset().union(*ranks_of_parts))


def _merge(parts: Sequence[_Part], lost_parts: Sequence[_Part]) -> FleetJob:
    jobs = [part.job for part in parts]
    sizes = {job.world_size for job in jobs} - {None}
    world_size = sizes.pop() if len(sizes) == 1 else None
    state = min((job.state for job in jobs), key=_state_rank)
    standstill = _standstill(parts)
    if standstill is not None and standstill.waiting_rank_count == world_size and standstill.seconds >= STUCK_SECONDS:
        state = JobState.STUCK  # all ranks on all hosts wait in the collective, and no step completes
    since = [job.state_seconds for job in jobs if job.state == state and job.state_seconds is not None]
    host_names = tuple(dict.fromkeys(part.host_name for part in parts))
    users = tuple(dict.fromkeys(user for job in jobs for user in job.users if user))
    return FleetJob(
        name=_name([job.name or "" for job in jobs]),
        run_id=jobs[0].run_id,
        host_names=host_names,
        host_count=len(host_names),
        neuroncore_count=sum(job.neuroncore_count for job in jobs),
        rank_count=sum(job.rank_count for job in jobs),
        world_size=world_size,
        missing_ranks=_missing(parts, lost_parts, world_size),
        state=state,
        state_seconds=max(since, default=None),
        utilization_ratio=_mean([(job.utilization_ratio, job.neuroncore_count) for job in jobs]),
        steps_per_second=min((job.steps_per_second for job in jobs if job.steps_per_second is not None), default=None),
        mfu_ratio=_mean([(job.mfu_ratio, job.neuroncore_count) for job in jobs]),
        step_seconds=_step_seconds(jobs),
        slow_rank=_straggler(parts, world_size),
        standstill=standstill,
        severity=max(job.severity for job in jobs),
        users=users,
        requests_per_second=sum_known(job.requests_per_second for job in jobs),
        request_p99_seconds=max_known(job.request_p99_seconds for job in jobs),
        user_count=jobs[0].user_count if len(jobs) == 1 else len(users) if all(map(_has_named_users, jobs)) else None,
    )


def _has_named_users(job: SummaryJob) -> bool:
    """Whether every user has a name. UIDs of users without a name cannot be compared across hosts."""
    return len(frozenset(filter(None, job.users))) == job.user_count


def _state_rank(state: str) -> int:
    """Returns a sort key. States that explain other states come first.

    While one rank compiles, for example, the ranks that wait for it are not stuck.
    """
    return _STATES.index(JobState(state)) if state in _STATES else len(_STATES)


def _name(names: Sequence[str]) -> str:
    """Returns the first of several names, such as those of a run's pods, and says how many more there are."""
    different = sorted(set(names))
    return different[0] + (f" and {len(different) - 1} more" if len(different) > 1 else "")


def _missing(parts: Sequence[_Part], lost_parts: Sequence[_Part], world_size: int | None) -> tuple[MissingRank, ...]:
    there: set[int] = set()
    for part in parts:
        there |= part.job.ranks or frozenset()
    if world_size is None or len(there) != sum(part.job.rank_count for part in parts):
        return ()
    started = {rank: (part.host_name, False) for part in parts for rank in part.job.missing_ranks}
    started |= {rank: (part.host_name, True) for part in lost_parts for rank in part.job.ranks or ()}
    missing = []
    for rank in range(world_size):
        if rank not in there:
            missing.append(MissingRank(rank, *started.get(rank, (None, False))))
            if len(missing) == MOST_MISSING:
                break
    return tuple(missing)


def _standstill(parts: Sequence[_Part]) -> FleetStandstill | None:
    standstills = [(part, part.job.standstill) for part in parts]
    waiting = [each for _, each in standstills if each is not None]
    if not waiting or any(part.job.state not in (JobState.WAITING, JobState.STUCK) for part in parts):
        return None
    # If no rank of a part of the run waits, no rank of this part has reached the collective.
    absent = [
        (part, part.job.rank_count, tuple(sorted(part.job.ranks or ()))[:MOST_ABSENT])
        if each is None
        else (part, each.absent_rank_count, each.absent_ranks)
        for part, each in standstills
    ]
    return FleetStandstill(
        max(waiting, key=lambda each: each.waiting_rank_count).collective,
        sum(each.waiting_rank_count for each in waiting),
        sum(count for _, count, _ in absent),
        tuple(AbsentRank(rank, part.host_name) for part, _, ranks in absent for rank in ranks),
        min(each.seconds for each in waiting),
    )


def _step_seconds(jobs: Sequence[SummaryJob]) -> StepSeconds | None:
    recent = [job.recent_steps for job in jobs if job.recent_steps is not None]
    if not recent:
        return None
    medians = sorted(steps.median_step_seconds for steps in recent for _ in range(steps.rank_count))
    return StepSeconds(
        min(steps.least_step_seconds for steps in recent),
        medians[len(medians) // 2],
        max(steps.most_step_seconds for steps in recent),
    )


def _straggler(parts: Sequence[_Part], world_size: int | None) -> SlowFleetRank | None:
    """Returns the straggler of a job. None if some ranks are unknown, because one of them may be slower."""
    recent = [part.job.recent_steps for part in parts if part.job.recent_steps is not None]
    count = sum(steps.rank_count for steps in recent)
    if count != sum(part.job.rank_count for part in parts) or world_size not in (None, count):
        return None
    found = find_straggler(recent)
    if found is None:
        return None
    rank = found.rank
    return SlowFleetRank(
        rank.rank, parts[found.index].host_name, rank.pid, found.part, found.gain_seconds, found.gain_ratio
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    weighted = [(value * weight, weight) for value, weight in values if value is not None and weight]
    return sum(value for value, _ in weighted) / sum(weight for _, weight in weighted) if weighted else None
