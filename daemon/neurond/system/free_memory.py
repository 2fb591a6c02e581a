"""Memory: what nobody uses any more is given back to the system, and there being none is a line and no traceback.

The C library keeps what a flood of calls has taken.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, EncodeError

from neurontools.util.rate_limited_log import RateLimitedLogger

tell_out_of_memory = RateLimitedLogger(logging.getLogger(__name__), logging.ERROR)

_MANY = 50
_QUIET_SECONDS = 1.0
_LONGEST_SECONDS = 10.0


def is_out_of_memory(error: object) -> bool:
    """Whether an error says that there is no memory.

    protobuf says so in words of its own: a whole message can't be written, one can't be read for want of an arena, or a
    function of its C part fails without saying why.
    """
    if isinstance(error, DecodeError):
        return "alloc" in str(error)
    return isinstance(error, MemoryError | EncodeError | SystemError)


def free_unused() -> None:
    """Gives back what can be, in some milliseconds; nothing where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class AfterFloods:
    """Has memory given back when many calls and connections have come and gone. Pure: `free` does it.

    It waits until none ends any more, because grpcio takes a while to take apart what has ended; where there is no such
    moment, it doesn't wait for ever.
    """

    def __init__(self, free: Callable[[], None] = free_unused) -> None:
        self._free = free
        self._freed_total = 0
        self._seen_total = 0
        self._seen_seconds = 0.0
        self._many_since_seconds: float | None = None

    def look(self, ended_total: int, now_seconds: float) -> None:
        """Is told from time to time how many have ended so far."""
        if ended_total != self._seen_total:
            self._seen_total, self._seen_seconds = ended_total, now_seconds
        if ended_total - self._freed_total < _MANY:
            return
        if self._many_since_seconds is None:
            self._many_since_seconds = now_seconds
        is_quiet = now_seconds - self._seen_seconds >= _QUIET_SECONDS
        if is_quiet or now_seconds - self._many_since_seconds >= _LONGEST_SECONDS:
            self._freed_total, self._many_since_seconds = ended_total, None
            self._free()


def told_in_a_line(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Takes the faults of a loop that nobody handled: a lack of memory is a line and no traceback, which takes more."""
    if is_out_of_memory(context.get("exception")):
        tell_out_of_memory("out of memory: somebody was not answered")
    else:
        loop.default_exception_handler(context)
