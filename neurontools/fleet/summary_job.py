"""A job as the summary of a host has it: its part on this host, and what it is merged by with those on others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from neurontools.model import Severity
from neurontools.model.jobs import JobState, JobSteps
from neurontools.model.process import STEP_PARTS

MOST_RUNS = 2
_MOST_RANKS_HERE = 1024
_HIGHEST_RANK = 2**20


@dataclass(frozen=True, slots=True)
class JobStandstill:
    """Ranks of a job on one host, of which at least one waits in a collective."""

    collective: str  # in which most of them wait
    waiting_rank_count: int
    absent_rank_count: int  # those that don't report included
    absent_ranks: tuple[int, ...]  # not all
    seconds: float  # since when the last of those that wait has been waiting


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """One of the largest jobs, as far as it runs on this host."""

    name: str | None  # None: a process of which no job is known
    neuroncore_count: int  # logical
    rank_count: int  # that run here
    world_size: int | None
    utilization_ratio: float | None
    steps_per_second: float | None
    mfu_ratio: float | None
    severity: Severity  # the gravest finding on its processes
    run_id: str | None = None  # what it is merged by with its parts on other hosts; None: it is of this host alone
    rank_runs: tuple[int, ...] = ()  # which ranks run here, as `rank_runs` has them; (): not known, or scattered
    missing_ranks: tuple[int, ...] = ()  # that its launcher started here and that are not there, not all
    state: str = JobState.UNKNOWN  # as in `JobState`, or one that a newer daemon knows
    state_seconds: float | None = None  # since when; of waiting and training, since its last step
    recent_steps: JobSteps | None = None  # None: there were too few, or not all ranks tell
    standstill: JobStandstill | None = None  # None: nobody waits in a collective, or it trains
    users: tuple[str, ...] = ()  # whose processes these are, not all where they are many
    user_count: int | None = None  # how many these are; None: none is known, or who asks may not see them

    @property
    def ranks(self) -> frozenset[int] | None:
        """Which ranks run here; None: not known."""
        runs = zip(self.rank_runs[::3], self.rank_runs[1::3], self.rank_runs[2::3], strict=False)
        found = [rank for first, step, count in runs for rank in range(first, first + step * count, step)]
        return frozenset(found) if found else None

    def check(self) -> None:
        """ValueError for what no host can mean, whoever sent it."""
        runs = self.rank_runs
        if len(runs) % 3 or len(runs) > 3 * MOST_RUNS or sum(runs[2::3]) > _MOST_RANKS_HERE or 0 in runs[1::3]:
            raise ValueError("it has ranks that there are not")
        steps, standstill = self.recent_steps, self.standstill
        absent = standstill.absent_ranks if standstill is not None else ()
        if any(rank >= _HIGHEST_RANK for rank in (*runs, *self.missing_ranks, *absent)):
            raise ValueError("it has ranks that there are not")
        if standstill is not None and not _is_time(standstill.seconds):
            raise ValueError("it has numbers that are none")
        if steps is None:
            return
        if not len(steps.part_seconds) == len(steps.busiest.part_seconds) == len(STEP_PARTS):
            raise ValueError("it has other parts of steps; update the older side")
        numbers = [*steps.part_seconds, *steps.busiest.part_seconds]
        for part in (steps, steps.busiest):
            numbers += [value for name in part.__slots__ if isinstance(value := getattr(part, name), float)]
        if not all(map(_is_time, numbers)) or not 0 < steps.rank_count <= _MOST_RANKS_HERE:
            raise ValueError("it has steps that there are not")


def _is_time(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0.0


def rank_runs(ranks: Iterable[int | None]) -> tuple[int, ...]:
    """Ranks as (first, step, count) after each other: of 64 ranks of a block three numbers, of each eighth three too.

    () where one is not known, or where they are too scattered.
    """
    numbers = set(ranks)
    if None in numbers:
        return ()
    left = sorted(number for number in numbers if number is not None)
    runs: list[int] = []
    while left:
        first = left[0]
        step = left[1] - first if len(left) > 1 else 1
        count = 1
        while count < len(left) and left[count] == first + step * count:
            count += 1
        runs += (first, step, count)
        left = left[count:]
    return tuple(runs) if len(runs) <= 3 * MOST_RUNS else ()
