"""What a script wants called when a step has been executed, and its values are there."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from typing import Any

Closure = Callable[[], Any]
_waiting: list[tuple[Closure, bool]] = []


class _Background:
    """Calls closures one after the other in a thread of its own; what one raises is raised at the next step."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Closure | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def call(self, closure: Closure) -> None:
        """Has it called soon; raises what an earlier one has raised."""
        self.raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="StepClosures", daemon=True)
            self._thread.start()
            atexit.register(self._end)
        self._queue.put(closure)

    def raise_error(self) -> None:
        """Raises what a closure has raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while (closure := self._queue.get()) is not None:
            try:
                closure()
            except BaseException as error:
                self._error = self._error or error

    def _end(self) -> None:
        """Before the interpreter ends: those that still wait are called, as they would be without a thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
            self.raise_error()


_background = _Background()


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Calls a function after the next mark_step, when the values of its tensors are there.

    With `run_async` a thread calls it and mark_step does not wait for it; what it raises, a later mark_step raises.
    """
    _waiting.append((lambda: closure(*args), run_async))


def run() -> None:
    """Calls what waits for the step that has been executed."""
    _background.raise_error()
    if not _waiting:
        return
    closures, _waiting[:] = list(_waiting), []
    for closure, is_async in closures:
        if is_async:
            _background.call(closure)
        else:
            closure()
