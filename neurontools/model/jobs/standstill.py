"""Who of the ranks of a job waits in a collective, and who has not come to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.model.process import Process


@dataclass(frozen=True, slots=True)
class Standstill:
    """Ranks of one host, of which at least one waits in a collective. One that does not report has not come."""

    collective: str  # in which most of them wait: "all_reduce"; "" where they don't tell
    waiting: tuple[Process, ...]
    absent: tuple[Process, ...]
    since_seconds: float  # CLOCK_MONOTONIC since when the last of those that wait has been waiting


def standstill(processes: Sequence[Process]) -> Standstill | None:
    """How it stands with the ranks of a job; None where none of them is known to be in a collective."""
    since = {process.pid: at for process in processes if (at := in_collective_since(process)) is not None}
    if not since:
        return None
    waiting = tuple(process for process in processes if process.pid in since)
    kinds = Counter(process.training.latest_collective or "" for process in waiting if process.training is not None)
    return Standstill(
        kinds.most_common(1)[0][0],
        waiting,
        tuple(process for process in processes if process.pid not in since),
        max(since.values()),
    )


def in_collective_since(process: Process) -> float | None:
    """CLOCK_MONOTONIC since when it is in a collective; None: it is in none, or nobody tells now."""
    counters = process.training if process.reporting else None
    return None if counters is None else counters.collective_since_seconds


def step_seconds(process: Process) -> float | None:
    """How long its steps take; None: it has made none, or does not tell.

    Where its latest ones are not known by themselves it is the mean since it began, which its start is a part of.
    """
    counters, began = process.training, process.counted_since_seconds
    if process.recent_steps is not None:
        return process.recent_steps.step_seconds
    if counters is None or not counters.steps_total or counters.last_step_at_seconds is None or began is None:
        return None
    return max(0.0, counters.last_step_at_seconds - began) / counters.steps_total
