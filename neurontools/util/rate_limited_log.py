"""A rate-limited logger, for messages that other processes can trigger."""

from __future__ import annotations

import logging
import time

SILENCE_SECONDS = 60.0


class RateLimitedLogger:
    """Logs at most one message per minute, and counts the messages it dropped."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log = log
        self._level = level
        self._logged_at_seconds: float | None = None
        self._dropped = 0

    def __call__(self, text: str, *values: object) -> None:
        """Logs a message or drops it. The next logged message includes the number of dropped messages."""
        now_seconds = time.monotonic()
        if self._logged_at_seconds is not None and now_seconds - self._logged_at_seconds < SILENCE_SECONDS:
            self._dropped += 1
            return
        if self._dropped:
            text, values = text + " (%d times more since the last such line)", (*values, self._dropped)
        self._logged_at_seconds, self._dropped = now_seconds, 0
        self._log.log(self._level, text, *values)
