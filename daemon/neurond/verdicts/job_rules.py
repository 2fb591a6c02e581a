"""Rules about training jobs: stragglers, stalled jobs, and stuck or idle cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neurond.verdicts.evidence import RuleContext, count_text
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import FindingKind
from neurontools.model.jobs import (
    StalledCollective,
    Straggler,
    find_stalled_collective,
    find_straggler,
    group_processes_by_job,
    mean_step_seconds,
    recent_steps,
    sort_by_rank,
    world_size,
)
from neurontools.util.units import ranges_text

_ACTIONS = {
    "compute": "its device is slower or its batches are larger: compare shapes, power and ECC errors",
    "host": "its script does extra work, such as logging or saving, or shares its vCPU: "
    "see neuron-top and py-spy dump --pid {pid}",
    "input wait": "its loader is slower: compare num_workers, the storage, and the sample sizes of its shard",
    "transfer": "it reads back or copies more values than the others: keep them on the device",
    "compile": "it compiles for shapes that the others don't have: pad its batches to the same sizes",
    None: "it is slightly slower in everything: compare its vCPUs and its device with those of the others",
}
_SHARES = ((0.5, "half"), (1 / 3, "a third"), (0.2, "a fifth"), (0.0, "a tenth"))


def stragglers(context: RuleContext) -> Iterator[Finding]:
    """Reports the straggler of each job that runs on this host alone. The client finds stragglers across hosts."""
    for ranks in group_processes_by_job(each for each in context.snapshot.processes if each.training is not None):
        if world_size(ranks) not in (None, len(ranks)):
            continue
        steps = recent_steps(ranks)
        slow = find_straggler((steps,)) if steps is not None else None
        if slow is not None and (job := ranks[0].job) is not None:
            yield _finding(job.name, ranks, slow, context.snapshot.taken_at_unix_seconds)


def _finding(job: str, ranks: list[Process], slow: Straggler, at_unix_seconds: float) -> Finding:
    found = next(process for process in ranks if process.pid == slow.rank.pid)
    share = next(text for ratio, text in _SHARES if slow.gain_ratio >= ratio)
    longer = f", which takes longer in {slow.part}" if slow.part is not None else ""
    return Finding(
        FindingKind.SLOW_RANK,
        Severity.NOTICE,
        f"the ranks of {job} wait for {_name(found)}{longer}: without it each step would be at least {share} shorter",
        _ACTIONS.get(slow.part, _ACTIONS[None]).format(pid=found.pid),
        at_unix_seconds,
        found.device_indices,
        found.pid,
        tuple(sorted(process.pid for process in ranks)),
        part=slow.part,
        job=job,
        synthetic=found.synthetic,
    )


_STEPS = 10.0  # a job is stalled if it makes no step for this many times its mean step time
_BUSY_VCPU_RATIO = 0.2
_BUSY_LIMIT_FACTOR = 5.0  # factor of the stall limit while an awaited rank uses its vCPU
_MOST_NAMED = 4
StallCause = tuple[str, Severity, Process, Sequence[Process]]
"""Reason, severity, the process to look at, and the processes whose devices the finding names."""


def stalled_job(processes: Sequence[Process], context: RuleContext) -> Finding | None:
    """Returns the finding for a stalled job; None if the job makes progress, or one of its ranks is at work."""
    limit = context.limits.stuck_seconds
    ranks = sort_by_rank(processes)
    if limit is None or not _work_together(ranks):
        return None
    limit = max(limit, _STEPS * max((mean_step_seconds(rank) or 0.0 for rank in ranks), default=0.0))
    found = find_stalled_collective(ranks)
    since = found.since_seconds if found is not None else _last_step_seconds(ranks)
    if since is None:
        return None
    absent = found.absent if found is not None else ranks
    waited = context.snapshot.taken_at_seconds - since
    limit_factor = _BUSY_LIMIT_FACTOR if any(_vcpu_ratio(rank) >= _BUSY_VCPU_RATIO for rank in absent) else 1.0
    if waited < limit * limit_factor or any(_is_at_work(rank, context, limit) for rank in absent):
        return None
    reason, severity, first, cause = _collective_stall(found, context) if found is not None else _step_stall(ranks)
    job = ranks[0].job
    name = job.name if job is not None else f"PID {first.pid}"
    return Finding(
        FindingKind.WAITING if severity is Severity.NOTICE else FindingKind.STUCK,
        severity,
        reason,
        "look at the job's ranks on other hosts (neuron-top --hosts): all ranks of this host have arrived"
        if severity is Severity.NOTICE
        else f"see where it hangs (py-spy dump --pid {first.pid}), then restart the job ({name})",
        context.snapshot.taken_at_unix_seconds - waited,
        tuple(sorted({index for rank in cause for index in rank.device_indices})),
        first.pid,
        tuple(sorted(rank.pid for rank in ranks)),
        job=name,
        synthetic=first.synthetic,
    )


def waits_in_collective(processes: Sequence[Process]) -> bool:
    """Whether ranks of a job report that they wait in a collective. If so, only `stalled_job` reports on the job."""
    return _work_together(processes) and find_stalled_collective(processes) is not None


def _work_together(processes: Sequence[Process]) -> bool:
    return processes[0].job is not None and max(len(processes), world_size(processes) or 0) > 1


def _last_step_seconds(ranks: Sequence[Process]) -> float | None:
    """Returns the time of the latest step of any rank (CLOCK_MONOTONIC); None unless all ranks report their steps."""
    steps = [
        rank.training.last_step_at_seconds if rank.training is not None and rank.reporting else None for rank in ranks
    ]
    known_steps = [at for at in steps if at is not None]
    return max(known_steps) if len(known_steps) == len(ranks) else None


def _is_at_work(rank: Process, context: RuleContext, limit: float) -> bool:
    """Whether a rank compiles, writes a checkpoint or executes. False for a rank that doesn't report."""
    if not rank.reporting:
        return False
    counters = rank.training
    if counters is not None and (counters.compiling_since_seconds or counters.checkpointing_since_seconds):
        return True
    now = context.snapshot.taken_at_unix_seconds
    cores = [core for index in rank.core_indices if (core := context.cores.get(index)) is not None]
    moments = [core.execution_started_at_unix_seconds or core.last_execution_at_unix_seconds for core in cores]
    return any(at is not None and now - at < limit for at in moments)


def _vcpu_ratio(rank: Process) -> float:
    return (rank.vcpu_user_ratio or 0.0) + (rank.vcpu_system_ratio or 0.0) if rank.reporting else 0.0


def _collective_stall(found: StalledCollective, context: RuleContext) -> StallCause:
    waiting, absent = found.waiting, found.absent
    verb = "waits" if len(waiting) == 1 else "wait"
    place = _collective_text(waiting[0])
    if absent:
        texts = [f"{_name(rank)}, {_absence_text(rank, context)}" for rank in absent[:_MOST_NAMED]]
        more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
        text = f"{_rank_count(waiting)} {verb} in {place} for {' and '.join(texts)}{more}"
        return text, Severity.CRITICAL, absent[0], absent
    size = world_size(waiting)
    if size is not None and size > len(waiting):
        text = f"{_rank_count(waiting)} of {_job(waiting)} {verb} in {place} for ranks on other hosts"
        return text, Severity.NOTICE, waiting[0], waiting
    collectives: dict[str, list[Process]] = {}
    for rank in waiting:
        collectives.setdefault(_collective_text(rank), []).append(rank)
    listed = ", ".join(
        f"{_rank_count(ranks) if len(ranks) > 1 else _name(ranks[0])} in {name}" for name, ranks in collectives.items()
    )
    behind = min(collectives.values(), key=lambda ranks: (_number(ranks[0]), len(ranks)))
    return f"no rank of {_job(waiting)} makes progress: {listed}", Severity.CRITICAL, behind[0], behind


def _step_stall(ranks: Sequence[Process]) -> StallCause:
    subject = f"no rank of {_job(ranks)} makes" if len(ranks) > 1 else f"{_name(ranks[0])}, of {_job(ranks)} makes no"
    text = f"{subject} a step any more, and none is in a collective" if len(ranks) > 1 else f"{subject} step any more"
    return text, Severity.WARNING, ranks[0], ranks


def _absence_text(rank: Process, context: RuleContext) -> str:
    """Describes what a rank does instead of joining the collective, and names its last collective."""
    after = f" after {_collective_text(rank)}" if rank.training is not None and rank.training.latest_collective else ""
    if not rank.reporting:
        return f"which has stopped reporting{after}"
    cores = [core for index in rank.core_indices if (core := context.cores.get(index)) is not None]
    if any(core.execution_started_at_unix_seconds is not None for core in cores):
        return f"whose execution does not finish{after}"
    return f"which executes nothing{after}"


def _collective_text(rank: Process) -> str:
    """Names the current or last collective of a rank, and its number."""
    kind = rank.training.latest_collective if rank.training is not None else None
    return f"{kind or 'a collective'} (number {_number(rank)})"


def _number(rank: Process) -> int:
    counters = rank.training
    if counters is None:
        return 0
    return (counters.collectives_total or 0) + (counters.collective_since_seconds is not None)


def _rank_count(ranks: Sequence[Process]) -> str:
    return count_text(len(ranks), "rank")


def _name(rank: Process) -> str:
    number = rank.job.rank if rank.job is not None else None
    return f"PID {rank.pid}" if number is None else f"rank {number}, PID {rank.pid}"


def _job(ranks: Sequence[Process]) -> str:
    return ranks[0].job_name or "the job"


@dataclass(frozen=True, slots=True)
class _Core:
    """A core, and since when it makes no progress: the start of its current execution, or the end of its last one."""

    process: Process
    neuroncore_index: int
    device_index: int
    since_unix_seconds: float


@dataclass(slots=True)
class _Group:
    """The cores of one job or single process, split into those in an execution and those between executions."""

    job: str | None
    pids: list[int] = field(default_factory=list)
    in_flight: list[_Core] = field(default_factory=list)
    between: list[_Core] = field(default_factory=list)


def activity_findings(context: RuleContext) -> Iterator[Finding]:
    """Reports stalled jobs, stuck cores and idle cores. Skips processes whose reports are old."""
    now, limits = context.snapshot.taken_at_unix_seconds, context.limits
    for processes in group_processes_by_job(process for process in context.snapshot.processes if process.core_indices):
        stall = stalled_job(processes, context)
        if stall is not None:
            yield stall
        if stall is not None or waits_in_collective(processes):
            continue
        group = _group(processes, context)
        stuck = []
        if limits.stuck_seconds is not None:
            stuck = [core for core in group.in_flight if now - core.since_unix_seconds >= limits.stuck_seconds]
            # A waiting core ended its last execution at about the start of the stuck one, so half the limit applies.
            waiting = [core for core in group.between if now - core.since_unix_seconds >= limits.stuck_seconds / 2]
        if stuck:
            yield _stuck(group, stuck, waiting)
        elif limits.idle_seconds is not None:
            idle = [core for core in group.between if now - core.since_unix_seconds >= limits.idle_seconds]
            if idle:
                yield _idle(group, idle)


def _group(processes: Sequence[Process], context: RuleContext) -> _Group:
    job = processes[0].job
    group = _Group(job.name if job is not None and len(processes) > 1 else None)
    for process in (each for each in processes if each.reporting):
        group.pids.append(process.pid)
        lnc = process.logical_neuroncore_config
        for position, neuroncore_index in enumerate(process.neuroncore_indices):
            core = context.cores.get(process.core_indices[position * lnc])
            if core is None:
                continue
            started = core.execution_started_at_unix_seconds
            since = max(core.last_execution_at_unix_seconds or 0.0, process.attached_at_unix_seconds or 0.0)
            if started is not None:
                group.in_flight.append(_Core(process, neuroncore_index, core.device_index, started))
            elif since:
                group.between.append(_Core(process, neuroncore_index, core.device_index, since))
    return group


def _stuck(group: _Group, stuck: list[_Core], waiting: list[_Core]) -> Finding:
    """Returns the finding for stuck cores.

    Names the minority of the processes as the cause: the few that execute while many wait, or the few that don't
    execute.
    """
    stuck_by, waiting_by = _processes(stuck), _processes(waiting)
    stuck_pids = {process.pid for process in stuck_by}
    waiting_only = [process for process in waiting_by if process.pid not in stuck_pids]
    if waiting_only and len(waiting_only) < len(stuck_by):
        absent = [core for core in waiting if core.process.pid not in stuck_pids]
        verb = "executes" if len(waiting_only) == 1 else "execute"
        stuck_count = _process_count(stuck_by)
        reason = f"{stuck_count} are in one execution and wait for {_named(waiting_only)}, which {verb} nothing"
        return _stuck_finding(group, absent, stuck, reason, waiting_only[0])
    if waiting_only:
        verb = "waits" if len(waiting_only) == 1 else "wait"
        reason = f"{_process_count(waiting_only)} {verb} for {_named(stuck_by)}, in one execution"
    elif len(stuck_by) > 1:
        reason = f"{_process_count(stuck_by)} of {group.job} are in one execution and none of them finishes"
    else:
        one = stuck_by[0]
        reason = f"{_cores(stuck)}: one execution of {_named([one])} runs and does not finish"
    return _stuck_finding(group, stuck, stuck, reason, stuck_by[0])


def _stuck_finding(group: _Group, cause: list[_Core], stuck: list[_Core], reason: str, first: Process) -> Finding:
    job = f"job ({group.job})" if group.job is not None else "job"
    return Finding(
        FindingKind.STUCK,
        Severity.CRITICAL,
        reason,
        f"see where it hangs (py-spy dump --pid {first.pid}), then restart the {job}",
        min(core.since_unix_seconds for core in stuck),
        _devices(cause),
        first.pid,
        tuple(sorted(group.pids)),
        cause[0].neuroncore_index if len(cause) == 1 else None,
        job=group.job,
        synthetic=first.synthetic,
    )


def _loaded_text(idle: Sequence[_Core]) -> str:
    """Names the served models that are loaded on idle cores, at most `_MOST_NAMED`; "" without any."""
    cores = {core.neuroncore_index for core in idle}
    models = (served for process in _processes(idle) for served in process.served_models)
    names = sorted({served.name for served in models if not cores.isdisjoint(served.neuroncore_indices)})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f", with {', '.join(names[:_MOST_NAMED])}{more} loaded" if names else ""


def _idle(group: _Group, idle: list[_Core]) -> Finding:
    holders = _processes(idle)
    pid = holders[0].pid
    is_alone = len(holders) == 1
    holder_text = f"PID {pid}" if is_alone else f"{len(holders)} processes of {group.job}"
    verb, what = ("is", "core") if len({core.neuroncore_index for core in idle}) == 1 else ("are", "cores")
    return Finding(
        FindingKind.IDLE,
        Severity.NOTICE,
        f"{_cores(idle)} {verb} held by {holder_text} and idle{_loaded_text(idle)}",
        f"end {f'PID {pid}' if is_alone else group.job} if its work is done, so that others can use the {what}",
        min(core.since_unix_seconds for core in idle),
        _devices(idle),
        pid,
        tuple(holder.pid for holder in holders),
        idle[0].neuroncore_index if len(idle) == 1 else None,
        job=None if is_alone else group.job,
        synthetic=holders[0].synthetic,
    )


def _processes(cores: Sequence[_Core]) -> list[Process]:
    """Returns the processes of these cores, sorted by rank and PID."""
    found = {core.process.pid: core.process for core in cores}
    return sort_by_rank(found.values())


def _process_count(processes: Sequence[Process]) -> str:
    """Formats the number of processes: "63 ranks", or "63 processes" if a rank is unknown."""
    if all(process.job is not None and process.job.rank is not None for process in processes):
        return _rank_count(processes)
    return f"{len(processes)} process{'es' * (len(processes) != 1)}"


def _named(processes: Sequence[Process]) -> str:
    """Lists the first processes: "rank 0, PID 4711"."""
    more = len(processes) - _MOST_NAMED
    return " and ".join(map(_name, processes[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def _cores(cores: Sequence[_Core]) -> str:
    indices = {core.neuroncore_index for core in cores}
    return f"NeuronCore{'s' if len(indices) > 1 else ''} {ranges_text(indices)}"


def _devices(cores: Sequence[_Core]) -> tuple[int, ...]:
    return tuple(sorted({core.device_index for core in cores}))
