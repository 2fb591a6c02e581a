"""Counters by tag, which processes share that come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import add

from neurontools.model import Process
from neurontools.model.counting import count_key

_Counts = tuple[int, ...]
_Who = tuple[int, float | None]


@dataclass(frozen=True, slots=True)
class _Tag:
    processes: Mapping[_Who, _Counts]
    ended: _Counts  # what those had counted that have ended while others went on
    since_unix_seconds: float


class TagTotals:
    """The counts of all processes of a tag, those that have ended included while any goes on.

    Without these the sum would fall when one ends, and whoever reads it would take the rest for counted anew.
    """

    def __init__(self) -> None:
        self._tags: dict[str, _Tag] = {}

    def total(self, told: Mapping[str, Iterable[tuple[Process, float, _Counts]]]) -> dict[str, tuple[_Counts, float]]:
        """By tag: its counts, and since when they count; of each process is told since when, and its counts."""
        self._tags = {tag: _joined(self._tags.get(tag), list(processes)) for tag, processes in told.items()}
        return {
            tag: (_sum((known.ended, *known.processes.values())), known.since_unix_seconds)
            for tag, known in self._tags.items()
        }


def _joined(before: _Tag | None, told: list[tuple[Process, float, _Counts]]) -> _Tag:
    now = {_who(process): counts for process, _, counts in told}
    since = min(since for _, since, _ in told)
    if before is None:
        return _Tag(now, (0,) * len(told[0][2]), since)
    gone = [counts for who, counts in before.processes.items() if who not in now]
    return _Tag(now, _sum((before.ended, *gone)), min(since, before.since_unix_seconds))


def _who(process: Process) -> _Who:
    return count_key(process) or (process.pid, process.attached_at_unix_seconds or process.started_at_unix_seconds)


def _sum(all_counts: Iterable[_Counts]) -> _Counts:
    first, *others = all_counts
    for counts in others:
        first = tuple(map(add, first, counts))
    return first
