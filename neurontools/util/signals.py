"""Signals: deferred while nothing may raise, and sent when the parent dies."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` wraps every number in an enum, which costs time
import os
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol, TypeVar

PARENT_PID_VARIABLE = "NEURONTOOLS_ENDS_WITH"
"""Environment variable with the PID of the neuron-run that a worker must not outlive. Each process removes it."""

_PR_SET_PDEATHSIG = 1
# Signals whose handlers commonly raise: Ctrl-C, job end, time limits, a scheduler's warning.
_DEFERRED: tuple[int, ...] = (
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGALRM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)


class DeferredSignals:
    """Delays Python signal handlers until `release`. For the main thread only, because only it runs handlers.

    As a context manager it releases on exit.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._pending: list[int] = []
        self._callback: Callable[[int], object] | None = None
        defer = self._defer
        for number in _DEFERRED:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, defer)

    def on_signal(self, callback: Callable[[int], object]) -> None:
        """Calls `callback` with each deferred signal, pending ones first. It runs in a handler, so it may not raise."""
        self._callback = callback
        for number in tuple(self._pending):
            callback(number)

    def release(self) -> None:
        """Restores the handlers and calls each whose signal came, once. Their exceptions propagate."""
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._defer:  # otherwise somebody replaced the handler meanwhile
                _signal.signal(number, handler)
        for number in dict.fromkeys(self._pending):
            self._handlers[number](number, None)

    def __enter__(self) -> DeferredSignals:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _defer(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)
        if self._callback is not None:
            self._callback(number)


def defer_signals_here() -> DeferredSignals | None:
    """Defers signals if this is the main thread. Returns None in others, where no handler ever runs."""
    return DeferredSignals() if threading.current_thread() is threading.main_thread() else None


def defer_signals() -> AbstractContextManager[object]:
    """Returns a context that defers signals; in a thread other than the main one it does nothing."""
    return defer_signals_here() or nullcontext()


class Closeable(Protocol):
    """An object with `close`."""

    def close(self) -> object:
        """Closes the object."""


T = TypeVar("T", bound=Closeable)


@contextmanager
def closing_undisturbed(resource: T) -> Iterator[T]:
    """A context that closes the resource on exit, with signals deferred meanwhile."""
    try:
        yield resource
    finally:
        with defer_signals():
            resource.close()


def set_parent_death_signal(parent_pid: int, number: int) -> bool:
    """Asks the kernel to send this process a signal when its parent dies. Returns False if it is dead already.

    "Parent" means the thread that forked, so the parent must fork in its main thread. exec keeps the setting, except
    for set-user-ID programs. Children do not inherit it.
    """
    import ctypes  # slow to import, and few processes need it

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    return os.getppid() == parent_pid


def die_with_neuron_run(environment: MutableMapping[str, str]) -> None:
    """Sets SIGKILL as the parent death signal if the environment names the parent. Removes the variable.

    A neuron-run that is killed cannot stop its workers. Scripts that hang or handle SIGTERM would keep their
    NeuronCores, hence SIGKILL.
    """
    pid_text = environment.pop(PARENT_PID_VARIABLE, "")
    if pid_text.isdecimal() and not set_parent_death_signal(int(pid_text), _signal.SIGKILL):
        os.kill(os.getpid(), _signal.SIGKILL)
