"""The report of an error with which a process may end: asked for, and waited for a moment at the end."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

_WAIT_SECONDS = 1.0


class LastWords:
    """Asks for reports by `wishes`, where whoever reports answers whether one has arrived."""

    def __init__(self, wishes: SimpleQueue[SimpleQueue[bool] | None]) -> None:
        self._wishes = wishes
        self._answer: SimpleQueue[bool] | None = None
        self.has_untold_error = False

    def wish(self) -> None:
        """Asks for a report, unless one was asked for that has not come."""
        if self._answer is None or not self._answer.empty():
            self._answer = SimpleQueue()
            self._wishes.put(self._answer)

    def wait(self) -> None:
        """Waits a moment until the daemon knows of all errors, if there were any."""
        if self.has_untold_error:
            self.wish()
        if self._answer is not None and self._answer.empty():
            with suppress(Empty):
                self._answer.put(self._answer.get(timeout=_WAIT_SECONDS))
