"""How long the event loop is held: the CPU time of its longest turn, in which nobody else is answered."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any


class Turns:
    """The turns of an event loop, by the CPU time of its thread. A turn is all that runs between two looks at files.

    Each costs a microsecond to time. `longest_cpu_seconds` is None while none was timed.
    """

    def __init__(self) -> None:
        self.longest_cpu_seconds: float | None = None
        self._began_seconds = 0.0

    def begin(self) -> None:
        """The loop begins to serve: how long it took to come so far doesn't count."""
        self.longest_cpu_seconds = 0.0
        self._began_seconds = time.thread_time()

    def end_turn(self) -> None:
        """All that was ready has run."""
        longest_seconds = self.longest_cpu_seconds
        if longest_seconds is not None:
            self.longest_cpu_seconds = max(longest_seconds, time.thread_time() - self._began_seconds)

    def begin_turn(self) -> None:
        """Something is ready."""
        self._began_seconds = time.thread_time()


turns = Turns()
"""Those of this process's event loop."""


class _TimedSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        turns.end_turn()
        ready = super().select(timeout)
        turns.begin_turn()
        return ready


def timed_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose turns are timed."""
    return asyncio.SelectorEventLoop(_TimedSelector())
