"""When the execution that runs now must have ended: NEURON_RT_EXEC_TIMEOUT.

A kernel of the CPU can't be interrupted: a time-out is noticed between two of them, and in a collective at once, which
is where executions hang.
"""

from __future__ import annotations

import ctypes
import time
from datetime import timedelta
from typing import Any

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.failure import ExecutionFailed

EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
_CLOCK_SLACK_SECONDS = 0.01  # gloo waits by another clock, in whole milliseconds


class Deadline:
    """The deadline of the one execution that runs; changed and asked under the runtime's lock."""

    def __init__(self) -> None:
        self.clock = time.monotonic
        self._timeout_seconds: float | None = None
        self._ends_at_seconds = 0.0
        self._place = ""

    def start(self, timeout_seconds: float, place: str) -> None:
        """An execution begins that may take so long; `place` says where, for the error."""
        self._timeout_seconds = timeout_seconds
        self._ends_at_seconds = self.clock() + timeout_seconds
        self._place = place

    def clear(self) -> None:
        """The execution has ended."""
        self._timeout_seconds = None

    def check(self) -> None:
        """Raises ExecutionFailed when it is too late."""
        if self._timeout_seconds is not None and self.clock() > self._ends_at_seconds:
            raise self._exceeded(self._timeout_seconds)

    def wait(self, group: Any, work: Any) -> None:
        """Waits for a work of a gloo group; raises ExecutionFailed when the deadline passes before it is done."""
        if self._timeout_seconds is None:
            work.wait()
            return
        left_seconds = max(0.001, self._ends_at_seconds - self.clock())
        try:
            work.wait(timedelta(seconds=left_seconds))
        except RuntimeError:
            if self.clock() < self._ends_at_seconds - _CLOCK_SLACK_SECONDS:
                raise
            # Its threads still wait for the peers, and whoever destroys the group waits for them: nobody ever does.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            raise self._exceeded(self._timeout_seconds) from None

    def _exceeded(self, timeout_seconds: float) -> ExecutionFailed:
        return ExecutionFailed(
            NrtStatus.TIMEOUT,
            f"(FATAL-RT-UNDEFINED-STATE) inference timeout ({timeout_seconds * 1e3:.0f} ms) on {self._place}, waiting "
            f"for execution completion notification; raise {EXEC_TIMEOUT}, use a smaller batch, or look at the other "
            "ranks",
        )


deadline = Deadline()
