"""Jobs over hosts: the parts that hosts tell of are one job where their launcher says that they are one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.fleet.states import HostState, Link
from neurontools.fleet.summary_job import SummaryJob
from neurontools.model import Severity
from neurontools.model.jobs import JobState, find_straggler

MOST_MISSING = 16
MOST_ABSENT = 4  # of a host
STUCK_SECONDS = 60.0  # as neurond's own limit is by default
_STATES = tuple(JobState)


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that should run and is on none of the hosts that answer."""

    rank: int
    host_name: str | None  # where it was started; None: not known
    is_host_lost: bool


@dataclass(frozen=True, slots=True)
class SlowFleetRank:
    """The rank that the others wait for; `neurontools.model.jobs` tells how it is found."""

    rank: int | None
    host_name: str
    pid: int | None
    part: str | None  # as in STEP_PARTS: what takes it longer; None: all a little
    gain_seconds: float
    gain_ratio: float


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that runs and has not come to the collective in which others wait."""

    rank: int
    host_name: str


@dataclass(frozen=True, slots=True)
class FleetStandstill:
    """Ranks that wait in a collective, and those for whom they do, while no step is made."""

    collective: str  # in which those of the host with most of them wait
    waiting_rank_count: int
    absent_rank_count: int
    absent_ranks: tuple[AbsentRank, ...]  # the first of each host, as far as numbers are known
    seconds: float  # since when the last of those that wait has been waiting


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long the latest steps took, by rank; ranks in step all have the same."""

    least: float | None
    median: float  # of the medians of its hosts, each for as many ranks as it has, where those are told
    most: float | None


@dataclass(frozen=True, slots=True)
class FleetJob:
    """Processes that work together, on one host or on several."""

    name: str
    run_id: str | None  # None: it is of one host, as far as its launcher tells
    host_names: tuple[str, ...]  # () where the feed does not tell them
    host_count: int | None
    neuroncore_count: int
    rank_count: int  # that run on these hosts
    world_size: int | None
    missing_ranks: tuple[MissingRank, ...]  # those with the lowest numbers, as far as numbers are known
    state: str  # as in `JobState`
    state_seconds: float | None
    utilization_ratio: float | None  # mean of its cores
    steps_per_second: float | None  # of the slowest host that tells them
    mfu_ratio: float | None  # mean of its cores
    step_seconds: StepSeconds | None
    slow_rank: SlowFleetRank | None
    standstill: FleetStandstill | None
    severity: Severity | None  # the gravest finding on its processes; None: not known
    users: tuple[str, ...] = ()  # whose it is, as far as its hosts tell
    user_count: int | None = None  # how many these are; None: not known, and more than `users` where there are some

    @property
    def missing_rank_count(self) -> int:
        """How many ranks are on none of the hosts that answer."""
        return max(0, (self.world_size or 0) - self.rank_count)

    @property
    def without_users(self) -> FleetJob:
        """The same for who may see no users."""
        return replace(self, users=(), user_count=None)


@dataclass(frozen=True, slots=True)
class _Part:
    host_name: str
    job: SummaryJob


def fleet_jobs(states: Iterable[HostState]) -> tuple[FleetJob, ...]:
    """The jobs of the live hosts, those with most cores first. A process of which no job is known is none."""
    found: dict[tuple[str, ...], list[_Part]] = {}
    lost: dict[str, list[_Part]] = {}
    for state in states:
        if state.summary is None:
            continue
        for job in state.summary.jobs:
            part = _Part(state.place.name, job)
            if state.link is not Link.LIVE:
                lost.setdefault(job.run_id or "", []).append(part)
            elif job.run_id is not None:
                found.setdefault((job.run_id,), []).append(part)
            elif job.name is not None:
                found.setdefault((state.place.name, job.name), []).append(part)
    jobs = []
    for parts in found.values():
        gone = lost.get(parts[0].job.run_id or " ", [])
        jobs += [_merged(parts, gone)] if _is_one(parts) else [_merged([part], []) for part in parts]
    return tuple(sorted(jobs, key=lambda job: (-job.neuroncore_count, job.name, job.host_names)))


def _is_one(parts: Sequence[_Part]) -> bool:
    """Whether no rank is there twice: what only seems to be one run is not shown as one."""
    known = [ranks for part in parts if (ranks := part.job.ranks) is not None]
    return sum(map(len, known)) == len(frozenset().union(*known))


def _merged(parts: Sequence[_Part], gone: Sequence[_Part]) -> FleetJob:
    jobs = [part.job for part in parts]
    sizes = {job.world_size for job in jobs} - {None}
    world_size = sizes.pop() if len(sizes) == 1 else None
    state = min((job.state for job in jobs), key=_place_of_state)
    standstill = _standstill(parts)
    if standstill is not None and standstill.waiting_rank_count == world_size and standstill.seconds >= STUCK_SECONDS:
        state = JobState.STUCK  # all have come, each host sees that, and none of them gets on
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
        missing_ranks=_missing(parts, gone, world_size),
        state=state,
        state_seconds=max(since, default=None),
        utilization_ratio=_mean([(job.utilization_ratio, job.neuroncore_count) for job in jobs]),
        steps_per_second=min((job.steps_per_second for job in jobs if job.steps_per_second is not None), default=None),
        mfu_ratio=_mean([(job.mfu_ratio, job.neuroncore_count) for job in jobs]),
        step_seconds=_step_seconds(jobs),
        slow_rank=_slow(parts, world_size),
        standstill=standstill,
        severity=max(job.severity for job in jobs),
        users=users,
        user_count=jobs[0].user_count if len(jobs) == 1 else len(users) if all(map(_tells_its_users, jobs)) else None,
    )


def _tells_its_users(job: SummaryJob) -> bool:
    """Whether each has a name: of those that have none nobody knows whether they are those of another host."""
    return len(frozenset(filter(None, job.users))) == job.user_count


def _place_of_state(state: str) -> int:
    """Lower for what holds up the rest: while one rank compiles, those who wait for it are not stuck."""
    return _STATES.index(JobState(state)) if state in _STATES else len(_STATES)


def _name(names: Sequence[str]) -> str:
    """Of several names, as pods of one run have them, the first, and how many more there are."""
    different = sorted(set(names))
    return different[0] + (f" and {len(different) - 1} more" if len(different) > 1 else "")


def _missing(parts: Sequence[_Part], gone: Sequence[_Part], world_size: int | None) -> tuple[MissingRank, ...]:
    there: set[int] = set()
    for part in parts:
        there |= part.job.ranks or frozenset()
    if world_size is None or len(there) != sum(part.job.rank_count for part in parts):
        return ()
    started = {rank: (part.host_name, False) for part in parts for rank in part.job.missing_ranks}
    started |= {rank: (part.host_name, True) for part in gone for rank in part.job.ranks or ()}
    missing = []
    for rank in range(world_size):
        if rank not in there:
            missing.append(MissingRank(rank, *started.get(rank, (None, False))))
            if len(missing) == MOST_MISSING:
                break
    return tuple(missing)


def _standstill(parts: Sequence[_Part]) -> FleetStandstill | None:
    told = [(part, part.job.standstill) for part in parts]
    waiting = [each for _, each in told if each is not None]
    if not waiting or any(part.job.state not in (JobState.WAITING, JobState.STUCK) for part in parts):
        return None
    # Where nobody waits, nobody has come.
    absent = [
        (part, part.job.rank_count, tuple(sorted(part.job.ranks or ()))[:MOST_ABSENT])
        if each is None
        else (part, each.absent_rank_count, each.absent_ranks)
        for part, each in told
    ]
    return FleetStandstill(
        max(waiting, key=lambda each: each.waiting_rank_count).collective,
        sum(each.waiting_rank_count for each in waiting),
        sum(count for _, count, _ in absent),
        tuple(AbsentRank(rank, part.host_name) for part, _, ranks in absent for rank in ranks),
        min(each.seconds for each in waiting),
    )


def _step_seconds(jobs: Sequence[SummaryJob]) -> StepSeconds | None:
    told = [job.recent_steps for job in jobs if job.recent_steps is not None]
    if not told:
        return None
    medians = sorted(steps.median_step_seconds for steps in told for _ in range(steps.rank_count))
    return StepSeconds(
        min(steps.least_step_seconds for steps in told),
        medians[len(medians) // 2],
        max(steps.most_step_seconds for steps in told),
    )


def _slow(parts: Sequence[_Part], world_size: int | None) -> SlowFleetRank | None:
    """Whom all ranks wait for; None too where not all of them are known: one that is not may be the slower one."""
    told = [part.job.recent_steps for part in parts if part.job.recent_steps is not None]
    count = sum(steps.rank_count for steps in told)
    if count != sum(part.job.rank_count for part in parts) or world_size not in (None, count):
        return None
    found = find_straggler(told)
    if found is None:
        return None
    rank = found.rank
    return SlowFleetRank(
        rank.rank, parts[found.index].host_name, rank.pid, found.part, found.gain_seconds, found.gain_ratio
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value * weight, weight) for value, weight in values if value is not None and weight]
    return sum(value for value, _ in known) / sum(weight for _, weight in known) if known else None
