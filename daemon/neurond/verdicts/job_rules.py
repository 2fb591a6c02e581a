"""The rank of a job on this host that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neurond.verdicts.evidence import RuleContext
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import by_rank, recent_steps, together, world_size
from neurontools.model.jobs.slow_rank import SlowRank, slow_rank
from neurontools.model.jobs.standstill import Standstill, standstill, step_seconds
from neurontools.util.units import ranges_text

_ACTIONS = {
    "compute": "its device is slower or its batches are larger: compare shapes, power and ECC errors",
    "host": "its script does something that others don't, such as logging or saving, or its vCPU is shared: "
    "see neuron-top and py-spy dump --pid {pid}",
    "input wait": "its loader is slower: compare num_workers, the storage, and the sizes of what is in its shard",
    "transfer": "it reads more values back or copies more than others: keep them on the device",
    "compile": "it meets shapes that others don't: pad its batches to the same sizes",
    None: "it is a little slower in all: compare the vCPUs and the device that it has with those of the others",
}
_SHARES = ((0.5, "half"), (1 / 3, "a third"), (0.2, "a fifth"), (0.0, "a tenth"))


def stragglers(evidence: RuleContext) -> Iterator[Finding]:
    """A finding for each job whose ranks wait for one of them. Of one on several hosts no host alone can tell."""
    for ranks in together(process for process in evidence.snapshot.processes if process.training is not None):
        if world_size(ranks) not in (None, len(ranks)):
            continue
        steps = recent_steps(ranks)
        slow = slow_rank((steps,)) if steps is not None else None
        if slow is not None and (job := ranks[0].job) is not None:
            yield _finding(job.name, ranks, slow, evidence.snapshot.taken_at_unix_seconds)


def _finding(job: str, ranks: list[Process], slow: SlowRank, at_unix_seconds: float) -> Finding:
    found = next(process for process in ranks if process.pid == slow.rank.pid)
    who = f"PID {found.pid}" if slow.rank.rank is None else f"rank {slow.rank.rank}, PID {found.pid}"
    share = next(text for ratio, text in _SHARES if slow.gain_ratio >= ratio)
    longer = f", which takes longer in {slow.part}" if slow.part is not None else ""
    return Finding(
        Kind.SLOW_RANK,
        Severity.NOTICE,
        f"the ranks of {job} wait for {who}{longer}: without it each step would be {share} shorter or more",
        _ACTIONS.get(slow.part, _ACTIONS[None]).format(pid=found.pid),
        at_unix_seconds,
        found.device_indices,
        found.pid,
        tuple(sorted(process.pid for process in ranks)),
        part=slow.part,
        job=job,
        synthetic=found.synthetic,
    )


_STEPS = 10.0  # as long as the latest ones: without any for so long it stands still
_BUSY_VCPU_RATIO = 0.2
_PATIENCE_WITH_BUSY = 5.0  # times as long for a rank that uses its vCPU
_MOST_NAMED = 4
Told = tuple[str, Severity, Process, Sequence[Process]]
"""What is wrong, how gravely, who is to be looked at, and whose devices it is about."""


def stalled_job(processes: Sequence[Process], evidence: RuleContext) -> Finding | None:
    """The finding on a job whose ranks on this host stand still; None: they don't, or one of them is at work."""
    limit = evidence.limits.stuck_seconds
    ranks = by_rank(processes)
    if limit is None or not _work_together(ranks):
        return None
    limit = max(limit, _STEPS * max((step_seconds(rank) or 0.0 for rank in ranks), default=0.0))
    found = standstill(ranks)
    since = found.since_seconds if found is not None else _last_step_seconds(ranks)
    if since is None:
        return None
    absent = found.absent if found is not None else ranks
    waited = evidence.snapshot.taken_at_seconds - since
    patience = _PATIENCE_WITH_BUSY if any(_vcpu_ratio(rank) >= _BUSY_VCPU_RATIO for rank in absent) else 1.0
    if waited < limit * patience or any(_is_at_work(rank, evidence, limit) for rank in absent):
        return None
    reason, severity, first, cause = _told_of_waiting(found, evidence) if found is not None else _told_of_steps(ranks)
    job = ranks[0].job
    name = job.name if job is not None else f"PID {first.pid}"
    return Finding(
        Kind.WAITING if severity is Severity.NOTICE else Kind.STUCK,
        severity,
        reason,
        "look at the ranks on its other hosts (neuron-top --hosts): this one's have come"
        if severity is Severity.NOTICE
        else f"look where it stands (py-spy dump --pid {first.pid}), then restart the job ({name})",
        evidence.snapshot.taken_at_unix_seconds - waited,
        tuple(sorted({index for rank in cause for index in rank.device_indices})),
        first.pid,
        tuple(sorted(rank.pid for rank in ranks)),
        job=name,
        synthetic=first.synthetic,
    )


def waits_in_collective(processes: Sequence[Process]) -> bool:
    """Whether it is known that ranks of a job wait in a collective: then only that says whether they stand still."""
    return _work_together(processes) and standstill(processes) is not None


def _work_together(processes: Sequence[Process]) -> bool:
    return processes[0].job is not None and max(len(processes), world_size(processes) or 0) > 1


def _last_step_seconds(ranks: Sequence[Process]) -> float | None:
    """CLOCK_MONOTONIC of the latest step of any; None where not all of them tell, or one does not report."""
    steps = [
        rank.training.last_step_at_seconds if rank.training is not None and rank.reporting else None for rank in ranks
    ]
    known = [at for at in steps if at is not None]
    return max(known) if len(known) == len(ranks) else None


def _is_at_work(rank: Process, evidence: RuleContext, limit: float) -> bool:
    """Whether it compiles, writes a checkpoint or executes; nothing is known of one that doesn't report."""
    if not rank.reporting:
        return False
    counters = rank.training
    if counters is not None and (counters.compiling_since_seconds or counters.checkpointing_since_seconds):
        return True
    now = evidence.snapshot.taken_at_unix_seconds
    cores = [core for index in rank.core_indices if (core := evidence.cores.get(index)) is not None]
    moments = [core.execution_started_at_unix_seconds or core.last_execution_at_unix_seconds for core in cores]
    return any(at is not None and now - at < limit for at in moments)


def _vcpu_ratio(rank: Process) -> float:
    return (rank.vcpu_user_ratio or 0.0) + (rank.vcpu_system_ratio or 0.0) if rank.reporting else 0.0


def _told_of_waiting(found: Standstill, evidence: RuleContext) -> Told:
    waiting, absent = found.waiting, found.absent
    many = _rank_count(waiting)
    if absent:
        first = absent[0]
        texts = [f"{_name(rank)}, {_what(rank, evidence)}" for rank in absent[:_MOST_NAMED]]
        more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
        verb = "waits" if len(waiting) == 1 else "wait"
        text = f"{many} {verb} in {_place(waiting[0])} for {' and '.join(texts)}{more}"
        return text, Severity.CRITICAL, first, absent
    size = world_size(waiting)
    if size is not None and size > len(waiting):
        verb = "waits" if len(waiting) == 1 else "wait"
        text = f"{many} of {_job(waiting)} {verb} in {_place(waiting[0])} for ranks on other hosts"
        return text, Severity.NOTICE, waiting[0], waiting
    places: dict[str, list[Process]] = {}
    for rank in waiting:
        places.setdefault(_place(rank), []).append(rank)
    told = ", ".join(
        f"{_rank_count(ranks) if len(ranks) > 1 else _name(ranks[0])} in {at}" for at, ranks in places.items()
    )
    behind = min(places.values(), key=lambda ranks: (_number(ranks[0]), len(ranks)))
    return f"no rank of {_job(waiting)} gets on: {told}", Severity.CRITICAL, behind[0], behind


def _told_of_steps(ranks: Sequence[Process]) -> Told:
    who = f"no rank of {_job(ranks)} makes" if len(ranks) > 1 else f"{_name(ranks[0])}, of {_job(ranks)} makes no"
    text = f"{who} a step any more, and none is in a collective" if len(ranks) > 1 else f"{who} step any more"
    return text, Severity.WARNING, ranks[0], ranks


def _what(rank: Process, evidence: RuleContext) -> str:
    """What one does that has not come, and its last collective."""
    after = f" after {_place(rank)}" if rank.training is not None and rank.training.latest_collective else ""
    if not rank.reporting:
        return f"which has stopped reporting{after}"
    cores = [core for index in rank.core_indices if (core := evidence.cores.get(index)) is not None]
    if any(core.execution_started_at_unix_seconds is not None for core in cores):
        return f"whose execution does not finish{after}"
    return f"which executes nothing{after}"


def _place(rank: Process) -> str:
    """The collective that it is in, or was in last, and which of its own that is."""
    kind = rank.training.latest_collective if rank.training is not None else None
    return f"{kind or 'a collective'} (number {_number(rank)})"


def _number(rank: Process) -> int:
    counters = rank.training
    if counters is None:
        return 0
    return (counters.collectives_total or 0) + (counters.collective_since_seconds is not None)


def _rank_count(ranks: Sequence[Process]) -> str:
    return f"{len(ranks)} rank{'s' * (len(ranks) > 1)}"


def _name(rank: Process) -> str:
    number = rank.job.rank if rank.job is not None else None
    return f"PID {rank.pid}" if number is None else f"rank {number}, PID {rank.pid}"


def _job(ranks: Sequence[Process]) -> str:
    return ranks[0].job.name if ranks[0].job is not None else "the job"


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


def activity_findings(evidence: RuleContext) -> Iterator[Finding]:
    """Jobs that are stuck, and cores that are idle; nothing is said of a process whose numbers are old."""
    now, limits = evidence.snapshot.taken_at_unix_seconds, evidence.limits
    for processes in together(process for process in evidence.snapshot.processes if process.core_indices):
        standing = stalled_job(processes, evidence)
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


def _group(processes: Sequence[Process], evidence: RuleContext) -> _Group:
    job = processes[0].job
    group = _Group(job.name if job is not None and len(processes) > 1 else None)
    for process in processes:
        if process.reporting:
            _enter(group, process, evidence)
    return group


def _enter(group: _Group, process: Process, evidence: RuleContext) -> None:
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
        verb = "executes" if len(waiting_only) == 1 else "execute"
        stuck_count = _process_count(stuck_by)
        reason = f"{stuck_count} are in one execution and wait for {_named(waiting_only)}, which {verb} nothing"
        return _of_stuck(group, absent, stuck, reason, waiting_only[0])
    if waiting_only:
        verb = "waits" if len(waiting_only) == 1 else "wait"
        reason = f"{_process_count(waiting_only)} {verb} for {_named(stuck_by)}, in one execution"
    elif len(stuck_by) > 1:
        reason = f"{_process_count(stuck_by)} of {group.job} are in one execution and none of them finishes"
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


def _process_count(processes: Sequence[Process]) -> str:
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
