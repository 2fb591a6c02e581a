"""The rank of a job on this host that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.verdicts.evidence import Evidence
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import recent_steps, together, world_size
from neurontools.model.jobs.slow_rank import SlowRank, slow_rank

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


def slow_ranks(evidence: Evidence) -> Iterator[Finding]:
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
