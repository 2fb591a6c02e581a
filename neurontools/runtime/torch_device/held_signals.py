"""Signals that come while nothing may raise: their handlers are called afterwards."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # below `signal`, which makes enumerations of all it takes and gives
import signal
import threading
from types import FrameType
from typing import Any

_RAISING = tuple(
    int(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
)
"""Those whose handlers people have raise: Ctrl-C, the end of a job, time limits, what a scheduler says before it."""


class HeldSignals:
    """Holds back what Python handlers do, from its making until `release`; for the main thread, which calls them."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        note = self._note
        for number in _RAISING:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, note)

    def release(self) -> None:
        """Puts the handlers back, and calls those whose signal came, once each; what they raise goes on."""
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._note:  # else somebody has set another one in the meantime
                _signal.signal(number, handler)
        for came in dict.fromkeys(self._came):
            self._handlers[came](came, None)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)


def held_signals() -> HeldSignals | None:
    """Signals held back; None in a thread where no handler is ever called."""
    return HeldSignals() if threading.current_thread() is threading.main_thread() else None
