"""The rank of a job on this host that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from neurontools.health import Kind
from neurontools.model import Finding, Process, Severity, Snapshot, TrainingCounters
from neurontools.model.counting import continues
from neurontools.model.jobs.running_job import by_rank, together
from neurontools.model.jobs.slow_rank import LEAST_STEPS, SlowRank, slow_rank, steps_between

_IN_A_ROW = 2  # times that the same rank was the slow one: once, chance may make it
_ACTIONS = {
    "compute": "its device is slower or its batches are larger: compare shapes, power and ECC errors",
    "host": "its script does something that others don't, such as logging or saving, or its vCPU is shared: "
    "see neuron-top and py-spy dump --pid {pid}",
    "input wait": "its loader is slower: compare num_workers, the storage, and the sizes of what is in its shard",
    "transfer": "it reads more values back or copies more than others: keep them on the device",
    "compile": "it meets shapes that others don't: pad its batches to the same sizes",
    None: "it is a little slower in all: compare the vCPUs and the device that it has with those of the others",
}
_STEPS = ((0.5, "half"), (1 / 3, "a third"), (0.2, "a fifth"), (0.0, "a tenth"))


@dataclass(slots=True)
class _Past:
    """The ranks of a job when they were last compared, by PID, and what came of it."""

    ranks: dict[int, Process] = field(default_factory=dict)
    slow_pid: int | None = None
    times: int = 0  # in a row
    found: Finding | None = None


class SlowRanks:
    """Remembers what ranks had counted. Show it every snapshot of a tick, in order."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Past] = {}

    def look(self, snapshot: Snapshot) -> Iterator[Finding]:
        """A finding for each job whose ranks wait for one of them."""
        jobs: dict[str, _Past] = {}
        for processes in together(process for process in snapshot.processes if process.training is not None):
            job = processes[0].job
            if job is None or len(processes) < 2:
                continue
            past = jobs[job.name] = self._jobs.get(job.name) or _Past()
            _compare(past, by_rank(processes), snapshot.taken_at_unix_seconds)
            if past.found is not None:
                yield past.found
        self._jobs = jobs


def _compare(past: _Past, ranks: list[Process], at_unix_seconds: float) -> None:
    """Looks who is slow, once all ranks have made enough steps since the last time."""
    before = [past.ranks.get(process.pid) for process in ranks]
    if len(past.ranks) != len(ranks) or not all(
        then is not None and continues(then, now) for then, now in zip(before, ranks, strict=True)
    ):
        past.ranks = {process.pid: process for process in ranks}
        past.slow_pid, past.times, past.found = None, 0, None
        return
    counted = [(_training(then), _training(now)) for then, now in zip(before, ranks, strict=True) if then is not None]
    if any(now.steps_total - then.steps_total < LEAST_STEPS for then, now in counted):
        return
    compared = [steps for then, now in counted if (steps := steps_between(then, now)) is not None]
    slow = slow_rank(compared) if len(compared) == len(ranks) else None
    past.ranks = {process.pid: process for process in ranks}
    pid = ranks[slow.index].pid if slow is not None else None
    past.times = past.times + 1 if pid is not None and pid == past.slow_pid else int(pid is not None)
    past.slow_pid = pid
    past.found = _finding(slow, ranks, at_unix_seconds) if slow is not None and past.times >= _IN_A_ROW else None


def _training(process: Process) -> TrainingCounters:
    return process.training or TrainingCounters()


def _finding(slow: SlowRank, ranks: list[Process], at_unix_seconds: float) -> Finding:
    found = ranks[slow.index]
    job = found.job
    if job is None:
        raise ValueError("ranks are those of a job")
    who = f"PID {found.pid}" if job.rank is None else f"rank {job.rank}, PID {found.pid}"
    share = next(text for ratio, text in _STEPS if slow.gain_ratio >= ratio)
    longer = f", which takes longer in {slow.part}" if slow.part is not None else ""
    return Finding(
        Kind.SLOW_RANK,
        Severity.NOTICE,
        f"the ranks of {job.name} wait for {who}{longer}: without it each step would be {share} shorter or more",
        _ACTIONS.get(slow.part, _ACTIONS[None]).format(pid=found.pid),
        at_unix_seconds,
        found.device_indices,
        found.pid,
        tuple(sorted(process.pid for process in ranks)),
        part=slow.part,
        job=job.name,
        synthetic=found.synthetic,
    )
