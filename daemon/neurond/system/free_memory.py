"""Memory that nobody uses any more, given back to the system: the C library keeps what a flood of calls has taken."""

from __future__ import annotations

import ctypes


def free_unused() -> None:
    """Gives back what can be, in some milliseconds; nothing where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
