"""Waiting for what happens by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_SECONDS = 300.0
"""The one time limit of the tests: what takes longer hangs. A machine busy with other things is not that slow."""


_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.02
"""Between two looks: one after the other takes CPU time from what is waited for. The longest is an interval of the
daemons that tick fastest here, so that no snapshot is left out."""


def wait_until(look: Callable[[], T | None]) -> T:
    """What `look` answers, asked again until it is true; fails the test after a long while."""
    began = time.monotonic()
    while not (answer := look()):
        waited_seconds = time.monotonic() - began
        assert waited_seconds < HANG_SECONDS, "what the test waits for did not happen"
        time.sleep(_pause_seconds(waited_seconds))
    return answer


async def wait_until_async(look: Callable[[], T | None]) -> T:
    """`wait_until` in an event loop, which goes on meanwhile."""
    began = time.monotonic()
    async with asyncio.timeout(HANG_SECONDS):
        while not (answer := look()):
            await asyncio.sleep(_pause_seconds(time.monotonic() - began))
    return answer


def _pause_seconds(waited_seconds: float) -> float:
    """A twentieth of what was waited already, so that little is added to any wait."""
    return min(max(waited_seconds / 20, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
