"""Unix time that nobody sets, for whatever has an age."""

from __future__ import annotations

import time
from collections.abc import Callable

_TOLERANCE_SECONDS = 0.05  # a clock that is off by less was not set: the two run alike
_ATTEMPTS = 5
_PROMPT_SECONDS = 0.001


class SteadyClock:
    """Unix time as the host's clock showed it when this began, gone on by CLOCK_MONOTONIC.

    The daemon keeps all moments in it, so that what began five minutes ago began five minutes ago, whatever becomes of
    the host's clock; `moved_seconds` leads from it to the time that the host shows now.
    """

    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self._unix_clock = unix_clock
        self._moved_seconds = 0.0
        self._offset_seconds = self._offset()

    def at(self, monotonic_seconds: float) -> float:
        """The time at a moment of CLOCK_MONOTONIC."""
        return monotonic_seconds + self._offset_seconds

    def now(self) -> float:
        """The time now."""
        return self.at(time.monotonic())

    def moved_seconds(self) -> float:
        """How far the host's clock has been set since this began: forward, or back where it is below 0."""
        moved_seconds = self._offset() - self._offset_seconds
        if abs(moved_seconds - self._moved_seconds) > _TOLERANCE_SECONDS:
            self._moved_seconds = moved_seconds
        return self._moved_seconds

    def _offset(self) -> float:
        """The host's clock less CLOCK_MONOTONIC; asked again where something came between the two."""
        offset_seconds = 0.0
        for _ in range(_ATTEMPTS):
            before = time.monotonic()
            unix_seconds = self._unix_clock()
            passed_seconds = time.monotonic() - before
            offset_seconds = unix_seconds - before
            if passed_seconds <= _PROMPT_SECONDS:
                break
        return offset_seconds
