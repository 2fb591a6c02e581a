"""Moments as people read them, in local time; ValueError, OverflowError or OSError for what no calendar shows."""

from __future__ import annotations

from time import localtime, strftime


def clock_text(unix_seconds: float) -> str:
    """The time of day, where the day goes without saying."""
    return strftime("%H:%M:%S", localtime(unix_seconds))


def day_text(unix_seconds: float) -> str:
    """Month, day and time of day, where there is no room for the year."""
    return strftime("%m-%d %H:%M:%S", localtime(unix_seconds))


def date_text(unix_seconds: float) -> str:
    """Year, month, day and time of day."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_seconds))
