"""Defers Python signal handlers, and sets the parent death signal."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` builds enums on import, which delays the start
import os
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol, TypeVar

PARENT_PID_VARIABLE = "NEURONTOOLS_ENDS_WITH"
"""Environment variable with the PID of the neuron-run that a worker must not outlive. Each worker removes it."""

_PR_SET_PDEATHSIG = 1
# Signals whose handlers often raise exceptions: Ctrl-C, end of a job, time limits, warnings of a scheduler.
_DEFERRED: tuple[int, ...] = (
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGALRM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)


never_raising_handlers: set[Callable[..., object]] = set()
"""Signal handlers that never raise, and so are never deferred."""


class DeferredSignals:
    """Defers Python signal handlers until `release`, or until the exit of the context manager.

    Use it in the main thread only, because Python runs signal handlers there.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._pending: list[int] = []
        self._callback: Callable[[int], object] | None = None
        defer = self._defer
        for number in _DEFERRED:
            handler = _signal.getsignal(number)
            if callable(handler) and handler not in never_raising_handlers:
                self._handlers[number] = handler
                _signal.signal(number, defer)

    def on_signal(self, callback: Callable[[int], object]) -> None:
        """Calls `callback` with each deferred signal, beginning with those already pending.

        The callback runs in a signal handler and must not raise.
        """
        self._callback = callback
        for number in tuple(self._pending):
            callback(number)

    def release(self) -> None:
        """Restores the handlers and calls the handler of each pending signal once. Handlers may raise."""
        self.drop()
        for number in dict.fromkeys(self._pending):
            self._handlers[number](number, None)

    def drop(self) -> None:
        """Restores the handlers, and forgets the pending signals."""
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._defer:  # keeps a handler that the program has set meanwhile
                _signal.signal(number, handler)

    def __enter__(self) -> DeferredSignals:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _defer(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)
        if self._callback is not None:
            self._callback(number)


def defer_signals_here() -> DeferredSignals | None:
    """Defers signals in the main thread. Returns None in other threads, where Python never runs signal handlers."""
    return DeferredSignals() if threading.current_thread() is threading.main_thread() else None


def defer_signals() -> AbstractContextManager[object]:
    """Returns a context manager that defers signals. It has no effect outside the main thread."""
    return defer_signals_here() or nullcontext()


@contextmanager
def dropping_signals() -> Iterator[None]:
    """Drops signals whose handlers would run in this thread meanwhile. It has no effect outside the main thread."""
    deferred = defer_signals_here()
    try:
        yield
    finally:
        if deferred is not None:
            deferred.drop()


@contextmanager
def blocking_interrupts() -> Iterator[None]:
    """Blocks SIGINT in this thread and in the processes that it starts meanwhile, which call `die_on_interrupt`.

    An interpreter that is interrupted while it starts prints "Fatal Python error" and ends with exit code 1.
    """
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT})
    try:
        yield
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def die_on_interrupt() -> None:
    """Makes SIGINT end this process at once, and unblocks it. Keeps SIGINT ignored where it is.

    A KeyboardInterrupt during the import of torch could be lost, or abort the process in torch's C++ code.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGINT})


def raise_on_interrupt() -> None:
    """Makes SIGINT raise KeyboardInterrupt again, after `die_on_interrupt`."""
    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


class Closeable(Protocol):
    """An object with a `close` method."""

    def close(self) -> object:
        """Closes the object."""


T = TypeVar("T", bound=Closeable)


@contextmanager
def closing_undisturbed(resource: T) -> Iterator[T]:
    """A context manager that closes a resource on exit and defers signals during the close."""
    try:
        yield resource
    finally:
        with defer_signals():
            resource.close()


def set_parent_death_signal(parent_pid: int, number: int) -> bool:
    """Makes the kernel send this process a signal when its parent dies. Returns False if the parent is already dead.

    To the kernel, the parent is the thread that forked, so the parent must fork in its main thread. The setting
    survives exec, except of set-user-ID programs. Children do not inherit it.
    """
    import ctypes  # a slow import, which few processes need

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    return os.getppid() == parent_pid


def die_with_neuron_run(environment: MutableMapping[str, str]) -> None:
    """Makes this worker die with its neuron-run if PARENT_PID_VARIABLE is set. Removes the variable.

    Uses the parent death signal, because a killed neuron-run cannot stop its workers. The signal is SIGKILL, because
    scripts that hang or handle SIGTERM would keep their NeuronCores.
    """
    pid_text = environment.pop(PARENT_PID_VARIABLE, "")
    if pid_text.isdecimal() and not set_parent_death_signal(int(pid_text), _signal.SIGKILL):
        os.kill(os.getpid(), _signal.SIGKILL)
