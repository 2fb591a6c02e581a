"""Moments in documents."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_text(unix_seconds: float | None) -> str | None:
    """RFC 3339 in UTC with milliseconds; None for an unknown moment."""
    if unix_seconds is None:
        return None
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
