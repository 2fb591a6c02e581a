"""Steps that somebody wants a profile of."""

from __future__ import annotations

import re


class NoSteps(ValueError):
    """A text that names no steps; it says what would."""


def steps_of(text: str) -> tuple[int, int | None]:
    """The first and the last step of 10:15, 10:, :15 or 10; both count. All of them for an empty text."""
    if not text:
        return 1, None
    found = re.fullmatch(r"(\d{0,9})(:?)(\d{0,9})", text, re.ASCII)
    if found is None or not (found[1] or found[3]):
        raise NoSteps(f"{text[:40]!r}: no steps; give the first and the last one, such as 10:15")
    first = int(found[1] or 1)
    last = int(found[3]) if found[3] else None if found[2] else first
    if first < 1 or (last is not None and last < first):
        raise NoSteps(f"{text[:40]!r}: the first step is 1, and the last one not before the first")
    return first, last
