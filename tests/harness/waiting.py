"""Waiting for what happens by itself."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
HANG_SECONDS = float(os.environ.get("TESTS_HANG_SECONDS", "300"))
"""The one time limit of the tests: what takes longer hangs. A machine busy with other things is not that slow.

`make mutants` has a shorter one, because many tests of a mutant wait in vain."""


_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _LONGEST_REST_SECONDS = 0.005, 0.02, 0.5
"""Between two looks: one after the other takes CPU time from what is waited for. The longest pause is an interval of
the daemons that tick fastest here, so that no snapshot is left out; after a look that takes longer, one as long."""


def wait_until(condition: Callable[[], T | None]) -> T:
    """Calls `condition` until its result is true, and returns the result; fails the test after a long while."""
    began = time.monotonic()
    while True:
        began_checking = time.monotonic()
        if answer := condition():
            return answer
        waited_seconds = time.monotonic() - began
        assert waited_seconds < HANG_SECONDS, "what the test waits for did not happen"
        time.sleep(_pause_seconds(waited_seconds, time.monotonic() - began_checking))


def is_readable(descriptor: int, seconds: float = HANG_SECONDS) -> bool:
    """Waits until a descriptor can be read. Unlike select, poll takes descriptors above 1,023."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def run_to_end(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a process to its end and captures its output, with the options of `subprocess.run`."""
    defaults: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "timeout": HANG_SECONDS, "check": False}
    return subprocess.run(command, **(defaults | options))


AWAIT_INPUT = "import select\nwhile not select.select([0], [], [], 0.1)[0]: pass"
"""Code of a child whose signal handlers raise, until its standard input has data or ends. Python runs a handler only
after a blocking call: a signal that comes just before `sys.stdin.read()` would wait for the input too (1 of 2,000)."""


async def wait_until_async(condition: Callable[[], T | None]) -> T:
    """`wait_until` in an event loop, which goes on meanwhile."""
    began = time.monotonic()
    async with asyncio.timeout(HANG_SECONDS):
        while not (answer := condition()):
            await asyncio.sleep(_pause_seconds(time.monotonic() - began, 0.0))
    return answer


def _pause_seconds(waited_seconds: float, check_seconds: float) -> float:
    """A twentieth of what was waited already, so that little is added to any wait."""
    pause_seconds = min(max(waited_seconds / 20, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
    return max(pause_seconds, min(check_seconds, _LONGEST_REST_SECONDS))
