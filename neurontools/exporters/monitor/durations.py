"""Durations as Go writes them, "1s", "1m30s", "500ms": what a neuron-monitor configuration has for a period."""

from __future__ import annotations

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST_TEXT = 64


class InvalidDuration(ValueError):
    """A text that is no duration; says why."""


def duration_seconds(text: str) -> float:
    """The seconds of a Go duration; the original doesn't know fractions such as "1.0s", which are right in Go."""
    position = 0
    seconds = 0.0
    if len(text) <= _LONGEST_TEXT:
        while match := _PART.match(text, position):
            seconds += float(match[1]) * _SECONDS[match[2]]
            position = match.end()
    if not text or position != len(text):
        raise InvalidDuration('not a duration; write a number with a unit (ms, s, m, h), such as "5s" or "1m30s"')
    return seconds
