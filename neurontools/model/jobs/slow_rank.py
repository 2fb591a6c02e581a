"""Which rank of a job the others wait for, and what it takes longer for, by what each counted over some steps.

Ranks that exchange gradients end each step together, so their steps take equally long, and so do the passes that wait
for the exchange (measured in TraceML's issue 252). Who is slow is who waits least for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neurontools.model.training import STEP_PARTS, TrainingCounters

LEAST_STEPS = 8
"""Of each rank: over fewer, chance decides who waits."""

_LEAST_RATIO = 0.1  # of a step: less is not worth a word
_IN_STEP_RATIO = 0.8  # of the others' steps: who makes fewer is not held up by them
_WAIT = "collective_wait_seconds_total"


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What one rank did over some steps: seconds a step, waiting for others and in each other part by its name."""

    steps: int
    wait_seconds: float
    seconds_by_part: Mapping[str, float]

    @property
    def step_seconds(self) -> float:
        """How long a step took."""
        return self.wait_seconds + sum(self.seconds_by_part.values())


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that the others wait for.

    `gain_seconds`: by how much each step of the job would be shorter if this rank were as quick as the next slowest;
    `gain_ratio` is its share of a step. `part` is the name in STEP_PARTS of what takes it longer; None: all a little.
    """

    index: int  # in what was compared
    part: str | None
    gain_seconds: float
    gain_ratio: float


def steps_between(before: TrainingCounters, now: TrainingCounters) -> RankSteps | None:
    """What a rank did between two reports; None where it made no step, or does not tell for what it waits."""
    steps = now.steps_total - before.steps_total
    if steps <= 0 or getattr(now, _WAIT) is None or getattr(before, _WAIT) is None:
        return None
    seconds = {}
    for part in STEP_PARTS:
        later, earlier = getattr(now, part.counter), getattr(before, part.counter)
        if later is not None:
            seconds[part.counter] = max(0.0, later - (earlier or 0.0)) / steps
    wait_seconds = seconds.pop(_WAIT)
    names = {part.counter: part.name for part in STEP_PARTS}
    return RankSteps(steps, wait_seconds, {names[counter]: value for counter, value in seconds.items()})


def slow_rank(ranks: Sequence[RankSteps]) -> SlowRank | None:
    """The rank that holds up the others; None where none clearly does, where the ranks are not in step, or are few."""
    if len(ranks) < 2 or min(rank.steps for rank in ranks) < LEAST_STEPS:
        return None
    if min(rank.steps for rank in ranks) < _IN_STEP_RATIO * max(rank.steps for rank in ranks):
        return None
    by_wait = sorted(range(len(ranks)), key=lambda index: ranks[index].wait_seconds)
    found, next_slowest = ranks[by_wait[0]], ranks[by_wait[1]]
    gain_seconds = next_slowest.wait_seconds - found.wait_seconds
    if gain_seconds < _LEAST_RATIO * found.step_seconds:
        return None
    others = [ranks[index] for index in by_wait[1:]]
    return SlowRank(by_wait[0], _part(found, others, gain_seconds), gain_seconds, gain_seconds / found.step_seconds)


def _part(found: RankSteps, others: Sequence[RankSteps], gain_seconds: float) -> str | None:
    """The part that takes this rank longer than it takes the others; it has to be half of what they wait, at least."""
    longer = {
        name: seconds - _median([other.seconds_by_part.get(name, 0.0) for other in others])
        for name, seconds in found.seconds_by_part.items()
    }
    name = max(longer, key=lambda each: longer[each], default=None)
    return name if name is not None and longer[name] >= gain_seconds / 2 else None


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
