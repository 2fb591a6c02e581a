"""Sentences that say how long something has lasted, which are the same sentence a second later."""

from __future__ import annotations

import re

_SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")


def without_seconds(text: str, instead: str = "") -> str:
    """The text with other words in place of each number of seconds."""
    return _SECONDS.sub(instead, text)
