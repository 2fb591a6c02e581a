"""Waits a moment for what the kernel tells of a process that has let its cores go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from neurond.journal.outcome import Outcome
from neurond.system.exit_status import exit_status, has_ended

# A process closes its connection before it has ended, and its status is known when its parent has waited for it.
_LOOKS_AFTER_SECONDS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


class ExitWatch:
    """Looks for the end of one process, about a second long, and tells it once, then `is_done`.

    `pidfd` belongs to it; -1: there is none.
    """

    def __init__(self, pidfd: int, pid: int, uid: int, on_known: Callable[[Outcome], None]) -> None:
        self._pidfd = pidfd
        self._pid = pid
        self._uid = uid
        self._on_known = on_known
        self._looks = iter(_LOOKS_AFTER_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_done = False
        self._wait()

    def close(self) -> None:
        """Ends it without a word; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self) -> None:
        after_seconds = next(self._looks, None)
        if after_seconds is None or self._pidfd < 0:
            self._tell(Outcome(lives_on=self._pidfd >= 0 and not has_ended(self._pidfd)))
        else:
            self._timer = self._loop.call_later(after_seconds, self._look)

    def _look(self) -> None:
        status = exit_status(self._pidfd, self._pid, self._uid) if has_ended(self._pidfd) else None
        if status is None:
            self._wait()
        else:
            self._tell(Outcome(status))

    def _tell(self, outcome: Outcome) -> None:
        self.close()
        self.is_done = True
        self._on_known(outcome)
