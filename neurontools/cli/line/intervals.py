"""How often and how many times a command repeats itself, as its options say."""

from __future__ import annotations

from neurontools.util.errors import EXIT_USAGE, UserError

LEAST_INTERVAL_SECONDS, MOST_INTERVAL_SECONDS = 0.05, 3600.0


def interval_seconds(flag: str, text: str) -> float:
    """The value of an option that takes seconds; UserError when it is none, or too short or long."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not LEAST_INTERVAL_SECONDS <= value <= MOST_INTERVAL_SECONDS:  # NaN fails too
        raise UserError(
            f"{flag} {text[:40]}: give seconds from {LEAST_INTERVAL_SECONDS:g} to {MOST_INTERVAL_SECONDS:g}", EXIT_USAGE
        )
    return value


def count(flag: str, text: str | None) -> int | None:
    """The value of an option that takes a number of times; None when it isn't given, UserError when it is none."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise UserError(f"{flag} {text[:40]}: give a whole number from 1", EXIT_USAGE)
    return int(text)
