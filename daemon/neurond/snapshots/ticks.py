"""When snapshots are taken, and when a process is best to report for them."""

from __future__ import annotations

import math

_FIRST_SHARE, _LAST_SHARE = 0.3, 0.7  # of an interval: where in it reports are wanted, far from the ticks at either end
_PLACES = 16
_LATE_SHARE = 0.5  # a tick that is late by less is taken at once


class Ticks:
    """Moments of CLOCK_MONOTONIC an interval apart, the same for as long as the daemon runs."""

    def __init__(self, interval_seconds: float, began_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self.began_seconds = began_seconds

    def after(self, tick_seconds: float, now_seconds: float) -> float:
        """The tick that follows one; those that were missed are left out."""
        late_share = (now_seconds - tick_seconds) / self.interval_seconds - 1.0
        return tick_seconds + self.interval_seconds * (1 + max(0, math.ceil(late_share - _LATE_SHARE)))

    def report_at(self, pid: int) -> float:
        """A moment at which a process should report; the others are intervals before and after it.

        Between two ticks there is one report then, no more and no less. Not all processes report at once.
        """
        place = _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * (pid % _PLACES) / (_PLACES - 1)
        return self.began_seconds + self.interval_seconds * place
