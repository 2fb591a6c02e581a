"""Moments as documents have them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_text(unix_seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds; ValueError, OverflowError or OSError for what no calendar shows."""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def known_moment_text(unix_seconds: float | None) -> str | None:
    """The same; None for an unknown moment."""
    return None if unix_seconds is None else moment_text(unix_seconds)
