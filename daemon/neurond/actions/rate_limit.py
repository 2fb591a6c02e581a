"""So many an hour at most: what was not used is saved up for an hour, so that a host that fails at once is told of."""

from __future__ import annotations

_HOUR_SECONDS = 3600.0


class RateLimit:
    """A bucket of tokens that holds those of an hour."""

    def __init__(self, most_per_hour: int, now_seconds: float) -> None:
        self._most = most_per_hour
        self._left = float(most_per_hour)
        self._at_seconds = now_seconds

    def admits(self, now_seconds: float) -> bool:
        """Whether one more may be; it counts then."""
        passed_seconds = max(0.0, now_seconds - self._at_seconds)
        self._left = min(self._most, self._left + passed_seconds * self._most / _HOUR_SECONDS)
        self._at_seconds = now_seconds
        if self._left < 1:
            return False
        self._left -= 1
        return True
