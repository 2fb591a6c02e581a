"""When which metric group is due. Pure: the caller brings the clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_EARLY_SECONDS = 0.002  # due within this is due now: a sleep may end a little early


@dataclass(slots=True)
class _Due:
    period_seconds: float
    at_seconds: float


class Schedule:
    """The next time of each key; all are due at the start. Times that were missed are not made up for."""

    def __init__(
        self, periods: Iterable[tuple[object, float]], start_seconds: float, idle_period_seconds: float
    ) -> None:
        """`idle_period_seconds`: how often there is to be a record where there is no key at all."""
        self._due = {key: _Due(period_seconds, start_seconds) for key, period_seconds in periods}
        self._idle = _Due(idle_period_seconds, start_seconds)

    @property
    def next_seconds(self) -> float:
        """When the next key is due."""
        return min((due.at_seconds for due in self._due.values()), default=self._idle.at_seconds)

    def shift(self, seconds: float) -> None:
        """Puts everything off by so much; less than 0: brings it forward."""
        for due in (*self._due.values(), self._idle):
            due.at_seconds += seconds

    def take(self, now_seconds: float, shortest_seconds: float = 0.0) -> frozenset[object]:
        """The keys that are due now; each is due again a period later, or `shortest_seconds` if that is longer."""
        taken = set()
        for key, due in self._due.items() if self._due else [(None, self._idle)]:
            if due.at_seconds <= now_seconds + _EARLY_SECONDS:
                taken.add(key)
                period_seconds = max(due.period_seconds, shortest_seconds)
                due.at_seconds += period_seconds
                if due.at_seconds <= now_seconds:
                    missed = (now_seconds - due.at_seconds) // period_seconds + 1
                    due.at_seconds += missed * period_seconds
        return frozenset(taken - {None})
