"""Waiting for what happens by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_SECONDS = 300.0
"""The one time limit of the tests: what takes longer hangs. A machine busy with other things is not that slow."""


def wait_until(look: Callable[[], T | None]) -> T:
    """What `look` answers, asked again until it is true; fails the test after a long while."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (answer := look()):
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.005)
    return answer


async def wait_until_async(look: Callable[[], T | None]) -> T:
    """`wait_until` in an event loop, which goes on meanwhile."""
    async with asyncio.timeout(HANG_SECONDS):
        while not (answer := look()):
            await asyncio.sleep(0.005)
    return answer
