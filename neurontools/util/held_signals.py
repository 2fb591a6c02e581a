"""Signals that come while nothing may raise: their handlers are called afterwards."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # below `signal`, which makes enumerations of all it takes and gives
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol, TypeVar

_RAISING: tuple[int, ...] = (
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGALRM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)
"""Those whose handlers people have raise: Ctrl-C, the end of a job, time limits, what a scheduler says before it."""


class HeldSignals:
    """Holds back what Python handlers do, from its making until `release`; for the main thread, which calls them.

    Also a context, which releases them however it is left.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self._tell: Callable[[int], object] | None = None
        note = self._note
        for number in _RAISING:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, note)

    def listen(self, tell: Callable[[int], object]) -> None:
        """Have each that comes told, those that have come at once; in a handler, so `tell` may not raise either."""
        self._tell = tell
        for came in tuple(self._came):
            tell(came)

    def release(self) -> None:
        """Puts the handlers back, and calls those whose signal came, once each; what they raise goes on."""
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._note:  # else somebody has set another one in the meantime
                _signal.signal(number, handler)
        for came in dict.fromkeys(self._came):
            self._handlers[came](came, None)

    def __enter__(self) -> HeldSignals:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        if self._tell is not None:
            self._tell(number)


def held_signals() -> HeldSignals | None:
    """Signals held back; None in a thread where no handler is ever called."""
    return HeldSignals() if threading.current_thread() is threading.main_thread() else None


def nothing_raises() -> AbstractContextManager[object]:
    """A context in which signals are held back; in a thread where no handler is ever called, nothing."""
    return held_signals() or nullcontext()


class Closeable(Protocol):
    """What has to be closed."""

    def close(self) -> object:
        """Close it."""


T = TypeVar("T", bound=Closeable)


@contextmanager
def closed_whole(thing: T) -> Iterator[T]:
    """A context that closes it, whatever signals come while it does."""
    try:
        yield thing
    finally:
        with nothing_raises():
            thing.close()
