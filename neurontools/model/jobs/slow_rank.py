"""Which rank of a job the others wait for, and what it takes longer for, by what each took for its latest steps.

Ranks that exchange gradients end each step together, so their steps take equally long, and so do the passes that wait
for the exchange (measured in TraceML's issue 252). Who is slow is who waits least for the others.

A job may be on many hosts. Each tells of its ranks only the one that waits least, how long the others wait at least,
and what they took in the mean: whoever holds up the whole job is the one of its host, and the others are only asked for
how long they wait and what the mean of them takes. So it is the same whether the ranks are on one host or on many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.model.training import STEP_PARTS, WAIT_PART

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
class SlowRank:
    """The rank that the others wait for.

    `gain_seconds`: by how much each step of the job would be shorter if this rank were as quick as the next slowest;
    `gain_ratio` is its share of a step. `part` is the name in STEP_PARTS of what takes it longer; None: all a little.
    """

    index: int  # of its host, in what was compared
    rank: RankSteps
    part: str | None
    gain_seconds: float
    gain_ratio: float


def job_steps(ranks: Sequence[RankSteps]) -> JobSteps:
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


def slow_rank(hosts: Sequence[JobSteps]) -> SlowRank | None:
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
    return SlowRank(index, found, _part(found, hosts, gain_seconds), gain_seconds, gain_seconds / found.step_seconds)


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
