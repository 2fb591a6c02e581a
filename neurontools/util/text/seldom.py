"""Lines of the log that others can cause: one in a while, with how many there were, so that nobody can flood it."""

from __future__ import annotations

import logging
import time

SILENCE_SECONDS = 60.0


class Seldom:
    """Logs at most a line in `silence_seconds`."""

    def __init__(self, log: logging.Logger, level: int, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._log = log
        self._level = level
        self._silence_seconds = silence_seconds
        self._told_at_seconds: float | None = None
        self._untold = 0

    def __call__(self, text: str, *values: object) -> None:
        """Logs the line, or counts it for the next one."""
        now_seconds = time.monotonic()
        if self._told_at_seconds is not None and now_seconds - self._told_at_seconds < self._silence_seconds:
            self._untold += 1
            return
        if self._untold:
            text, values = text + " (%d times more since the last such line)", (*values, self._untold)
        self._told_at_seconds, self._untold = now_seconds, 0
        self._log.log(self._level, text, *values)
