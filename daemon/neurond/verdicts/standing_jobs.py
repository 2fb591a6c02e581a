"""Jobs that stand still: their ranks wait for each other in a collective, or none of them makes a step any more.

A rank that compiles, writes a checkpoint or executes something, as for an evaluation, is waited for, and nothing is
wrong. So it is with one that uses its vCPU, but not for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from neurond.verdicts.evidence import Evidence
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import by_rank, world_size
from neurontools.model.jobs.standstill import Standstill, standstill, step_seconds

_STEPS = 10.0  # as long as the latest ones: without any for so long it stands still
_BUSY_VCPU_RATIO = 0.2
_PATIENCE_WITH_BUSY = 5.0  # times as long for a rank that uses its vCPU
_MOST_NAMED = 4
Told = tuple[str, Severity, Process, Sequence[Process]]
"""What is wrong, how gravely, who is to be looked at, and whose devices it is about."""


def standing_job(processes: Sequence[Process], evidence: Evidence) -> Finding | None:
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


def _is_at_work(rank: Process, evidence: Evidence, limit: float) -> bool:
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


def _told_of_waiting(found: Standstill, evidence: Evidence) -> Told:
    waiting, absent = found.waiting, found.absent
    many = _many(waiting)
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
    told = ", ".join(f"{_many(ranks) if len(ranks) > 1 else _name(ranks[0])} in {at}" for at, ranks in places.items())
    behind = min(places.values(), key=lambda ranks: (_number(ranks[0]), len(ranks)))
    return f"no rank of {_job(waiting)} gets on: {told}", Severity.CRITICAL, behind[0], behind


def _told_of_steps(ranks: Sequence[Process]) -> Told:
    who = f"no rank of {_job(ranks)} makes" if len(ranks) > 1 else f"{_name(ranks[0])}, of {_job(ranks)} makes no"
    text = f"{who} a step any more, and none is in a collective" if len(ranks) > 1 else f"{who} step any more"
    return text, Severity.WARNING, ranks[0], ranks


def _what(rank: Process, evidence: Evidence) -> str:
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


def _many(ranks: Sequence[Process]) -> str:
    return f"{len(ranks)} rank{'s' * (len(ranks) > 1)}"


def _name(rank: Process) -> str:
    number = rank.job.rank if rank.job is not None else None
    return f"PID {rank.pid}" if number is None else f"rank {number}, PID {rank.pid}"


def _job(ranks: Sequence[Process]) -> str:
    return ranks[0].job.name if ranks[0].job is not None else "the job"
