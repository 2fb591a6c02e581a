"""What the latest steps of each rank took: from its own reports, in two spans, so that one odd step decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from neurontools.model import Process, RecentSteps, TrainingCounters
from neurontools.model.counting import continues
from neurontools.model.training import STEP_PARTS, WAIT_PART

LEAST_STEPS = 6
"""Of a span: over fewer, chance decides who waits."""

_WARM_UP_STEPS = 2  # those that compile what is trained
_SPANS = 2


@dataclass(slots=True)
class _Past:
    began: Process  # where the span that goes on began
    spans: deque[tuple[int, tuple[float, ...]]] = field(default_factory=lambda: deque(maxlen=_SPANS))
    told: RecentSteps | None = None


class RecentStepsByProcess:
    """Remembers what each rank had counted. Feed it every report of a process, in order."""

    def __init__(self) -> None:
        self._past: dict[int, _Past] = {}

    def derive(self, now: Process) -> RecentSteps | None:
        """Its latest steps; None for a process that has made too few, or does not tell for what it waits."""
        counters = now.training
        if counters is None or counters.collective_wait_seconds_total is None or counters.steps_total < _WARM_UP_STEPS:
            return None
        past = self._past.get(now.pid)
        if past is None or not continues(past.began, now):
            self._past[now.pid] = _Past(now)
            return None
        before = past.began.training
        steps = counters.steps_total - (before.steps_total if before is not None else 0)
        if before is not None and steps >= LEAST_STEPS:
            past.spans.append((steps, _part_seconds(before, counters)))
            past.began = now
            past.told = _told(past.spans)
        return past.told

    def keep(self, pids: Set[int]) -> None:
        """Forgets all others."""
        for pid in self._past.keys() - pids:
            del self._past[pid]


def _part_seconds(before: TrainingCounters, now: TrainingCounters) -> tuple[float, ...]:
    """What was spent in each part between two reports."""
    return tuple(
        max(0.0, (getattr(now, part.counter) or 0.0) - (getattr(before, part.counter) or 0.0)) for part in STEP_PARTS
    )


def _told(spans: deque[tuple[int, tuple[float, ...]]]) -> RecentSteps | None:
    if len(spans) < _SPANS:
        return None
    steps = sum(count for count, _ in spans)
    waits = [seconds[WAIT_PART] / count for count, seconds in spans]
    parts = zip(*(seconds for _, seconds in spans), strict=True)
    return RecentSteps(steps, tuple(sum(each) / steps for each in parts), min(waits), max(waits))
