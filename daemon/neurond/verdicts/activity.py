"""Cores that stand still, by job: who waits for whom, and what is held for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neurond.verdicts.evidence import Evidence
from neurond.verdicts.standing_jobs import standing_job, waits_in_collective
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import by_rank, together
from neurontools.util.units import ranges_text

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class _Core:
    """A core that stands still: in an execution, or after its last one, since then."""

    process: Process
    neuroncore_index: int
    device_index: int
    since_unix_seconds: float


@dataclass(slots=True)
class _Group:
    """The cores of a job, or of a process that is alone."""

    job: str | None
    processes: dict[int, Process] = field(default_factory=dict)
    in_flight: list[_Core] = field(default_factory=list)
    between: list[_Core] = field(default_factory=list)


def activity(evidence: Evidence) -> Iterator[Finding]:
    """Jobs that are stuck, and cores that are idle; nothing is said of a process whose numbers are old."""
    now, limits = evidence.snapshot.taken_at_unix_seconds, evidence.limits
    for processes in together(process for process in evidence.snapshot.processes if process.core_indices):
        standing = standing_job(processes, evidence)
        if standing is not None:
            yield standing
        if standing is not None or waits_in_collective(processes):
            continue
        group = _group(processes, evidence)
        stuck = []
        if limits.stuck_seconds is not None:
            stuck = [core for core in group.in_flight if now - core.since_unix_seconds >= limits.stuck_seconds]
            # Who waits had its last execution at about the time when the stuck one began.
            waiting = [core for core in group.between if now - core.since_unix_seconds >= limits.stuck_seconds / 2]
        if stuck:
            yield _stuck(group, stuck, waiting)
        elif limits.idle_seconds is not None:
            idle = [core for core in group.between if now - core.since_unix_seconds >= limits.idle_seconds]
            if idle:
                yield _idle(group, idle)


def _group(processes: Sequence[Process], evidence: Evidence) -> _Group:
    job = processes[0].job
    group = _Group(job.name if job is not None and len(processes) > 1 else None)
    for process in processes:
        if process.reporting:
            _enter(group, process, evidence)
    return group


def _enter(group: _Group, process: Process, evidence: Evidence) -> None:
    group.processes[process.pid] = process
    lnc = process.logical_neuroncore_config
    for position, neuroncore_index in enumerate(process.neuroncore_indices):
        core = evidence.cores.get(process.core_indices[position * lnc])
        if core is None:
            continue
        started = core.execution_started_at_unix_seconds
        if started is not None:
            group.in_flight.append(_Core(process, neuroncore_index, core.device_index, started))
            continue
        since = max(core.last_execution_at_unix_seconds or 0.0, process.attached_at_unix_seconds or 0.0)
        if since:
            group.between.append(_Core(process, neuroncore_index, core.device_index, since))


def _stuck(group: _Group, stuck: list[_Core], waiting: list[_Core]) -> Finding:
    """The few are the cause: those in an execution for whom many wait, or those who don't come to it."""
    stuck_by, waiting_by = _processes(stuck), _processes(waiting)
    stuck_pids = {process.pid for process in stuck_by}
    waiting_only = [process for process in waiting_by if process.pid not in stuck_pids]
    if waiting_only and len(waiting_only) < len(stuck_by):
        absent = [core for core in waiting if core.process.pid not in stuck_pids]
        reason = (
            f"{_many(stuck_by)} are in one execution and wait for {_named(waiting_only)}, which executes nothing"
            if len(waiting_only) == 1
            else f"{_many(stuck_by)} are in one execution and wait for {_named(waiting_only)}, which execute nothing"
        )
        return _of_stuck(group, absent, stuck, reason, waiting_only[0])
    if waiting_only:
        reason = f"{_many(waiting_only)} wait{'s' * (len(waiting_only) == 1)} for {_named(stuck_by)}, in one execution"
    elif len(stuck_by) > 1:
        reason = f"{_many(stuck_by)} of {group.job} are in one execution and none of them finishes"
    else:
        one = stuck_by[0]
        reason = f"{_cores(stuck)}: one execution of {_named([one])} runs and does not finish"
    return _of_stuck(group, stuck, stuck, reason, stuck_by[0])


def _of_stuck(group: _Group, cause: list[_Core], stuck: list[_Core], reason: str, first: Process) -> Finding:
    pids = tuple(sorted(group.processes))
    job = f"job ({group.job})" if group.job is not None else "job"
    return Finding(
        Kind.STUCK,
        Severity.CRITICAL,
        reason,
        f"look where it stands (py-spy dump --pid {first.pid}), then restart the {job}",
        min(core.since_unix_seconds for core in stuck),
        _devices(cause),
        first.pid,
        pids,
        cause[0].neuroncore_index if len(cause) == 1 else None,
        job=group.job,
        synthetic=first.synthetic,
    )


def _idle(group: _Group, idle: list[_Core]) -> Finding:
    holders = _processes(idle)
    pid = holders[0].pid
    is_alone = len(holders) == 1
    who = f"PID {pid}" if is_alone else f"{len(holders)} processes of {group.job}"
    verb = "is" if len({core.neuroncore_index for core in idle}) == 1 else "are"
    what = "core" if verb == "is" else "cores"
    return Finding(
        Kind.IDLE,
        Severity.NOTICE,
        f"{_cores(idle)} {verb} held by {who} and idle",
        f"end {f'PID {pid}' if is_alone else group.job} if its work is done, so that others can have the {what}",
        min(core.since_unix_seconds for core in idle),
        _devices(idle),
        pid,
        tuple(holder.pid for holder in holders),
        idle[0].neuroncore_index if len(idle) == 1 else None,
        job=None if is_alone else group.job,
        synthetic=holders[0].synthetic,
    )


def _processes(cores: Sequence[_Core]) -> list[Process]:
    """Whose they are, by rank and PID."""
    found = {core.process.pid: core.process for core in cores}
    return by_rank(found.values())


def _rank(process: Process) -> int | None:
    return process.job.rank if process.job is not None else None


def _many(processes: Sequence[Process]) -> str:
    """A number of them: "63 ranks", and "processes" where their ranks are not known."""
    noun = "rank" if all(_rank(process) is not None for process in processes) else "process"
    count = len(processes)
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'s' if noun == 'rank' else 'es'}"


def _named(processes: Sequence[Process]) -> str:
    """Which they are: "rank 0, PID 4711"; of many the first."""
    names = [
        f"PID {process.pid}" if (rank := _rank(process)) is None else f"rank {rank}, PID {process.pid}"
        for process in processes[:_MOST_NAMED]
    ]
    more = len(processes) - len(names)
    return " and ".join(names) + (f" and {more} more" if more else "")


def _cores(cores: Sequence[_Core]) -> str:
    indices = {core.neuroncore_index for core in cores}
    return f"NeuronCore{'s' if len(indices) > 1 else ''} {ranges_text(indices)}"


def _devices(cores: Sequence[_Core]) -> tuple[int, ...]:
    return tuple(sorted({core.device_index for core in cores}))
