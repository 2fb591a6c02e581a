"""Lines that the runtime writes on standard error for whoever trains."""

from __future__ import annotations

import contextlib
import sys

from neurontools.text.terminal import visible

_told: set[str] = set()


def tell_once(matter: str, text: str) -> None:
    """One line on standard error, unless this matter was told before; never raises."""
    if matter in _told:
        return
    _told.add(matter)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error, or a closed one
        print(f"neurontools: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201
