"""The event queue of a reporter, and the handle of a loaded model.

A training thread reports by appending an event, a tuple of a function and its arguments, and never waits. An append to
a deque is atomic, also on free-threaded builds, and also if a finalizer or a signal handler interrupts another append.
So no event is lost, and the events of one thread stay in order. Only one thread at a time applies events, so the state
that the events change needs no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from neurontools.runtime.reporting.process_counters import Outcome, ProcessCounters, StartedExecution

APPLY_BATCH = 256
"""A thread that finds this many queued events applies them. More events would start the garbage collector."""


class EventQueue:
    """The events of one reporter that are not applied yet. Any thread may append events.

    `ignored` counts the events that raised an error; `last_error` is the text of the latest error.
    """

    def __init__(self) -> None:
        self.events: deque[tuple[Any, ...]] = deque()
        self.ignored = 0
        self.last_error: str | None = None
        self._apply_lock = Lock()

    def append(self, *event: Any) -> None:
        """Appends an event: a function and its arguments."""
        events = self.events
        events.append(event)
        if len(events) >= APPLY_BATCH:
            self.apply_if_idle()

    def apply_if_idle(self) -> None:
        """Applies the events, unless another thread or a caller further up on this stack is applying them.

        If two threads find the lock free at the same time, one of them waits for a fraction of a millisecond.
        """
        if not self._apply_lock.locked():
            with self._apply_lock:
                self._apply()

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Applies all events so far, and keeps other threads from applying more until the block ends."""
        with self._apply_lock:
            self._apply()
            yield

    def close(self) -> None:
        """Drops the queued events and every event that is appended later."""
        self.events = deque(maxlen=0)

    def _apply(self) -> None:
        events = self.events
        for _ in range(len(events)):
            function, *arguments = events.popleft()
            try:
                function(*arguments)
            except Exception as error:  # a call with wrong arguments must not fail the training script
                self.ignored += 1
                self.last_error = str(error) or type(error).__name__


class LoadedModel:
    """A model loaded with `Reporter.load_model`. Its methods never raise and never do I/O; any thread may call them."""

    __slots__ = ("_begin", "_clock", "_end", "_queue", "name")

    def __init__(self, name: str, queue: EventQueue, counters: ProcessCounters, clock: Callable[[], float]) -> None:
        self.name = name
        self._queue = queue
        self._clock = clock
        self._begin = counters.begin_execution
        self._end = counters.end_execution

    def begin(self, core: int = 0, at_seconds: float | None = None) -> StartedExecution:
        """Records the start of an execution on a core (process-local index), and returns the argument for `end`.

        `at_seconds` is the start by the reporter's clock; None means now.
        """
        started = (self, core, self._clock() if at_seconds is None else at_seconds)
        self._queue.events.append((self._begin, started))
        return started

    def end(
        self,
        started: StartedExecution,
        flop: int = 0,
        outcome: Outcome = Outcome.COMPLETED,
        queued_seconds: float = 0.0,
        at_seconds: float | None = None,
    ) -> None:
        """Records the end of an execution.

        `flop` is its number of floating point operations, `queued_seconds` its wait before the start. `at_seconds` is
        the end by the reporter's clock; None means now.
        """
        ended_seconds = self._clock() if at_seconds is None else at_seconds
        queue = self._queue
        events = queue.events
        events.append((self._end, started, ended_seconds, flop, outcome, queued_seconds))
        if len(events) >= APPLY_BATCH:
            queue.apply_if_idle()

    def execution(self, core: int = 0, flop: int = 0, queued_seconds: float = 0.0) -> Execution:
        """Returns a context manager that records one execution. If the block raises, the execution counts as failed."""
        return Execution(self, core, flop, queued_seconds)


class Execution:
    """One execution of a model, for a `with` statement. The block may set `flop` and `outcome`."""

    __slots__ = ("_core", "_model", "_queued_seconds", "_started", "flop", "outcome")

    def __init__(self, model: LoadedModel, core: int, flop: int, queued_seconds: float) -> None:
        self._model = model
        self._core = core
        self._queued_seconds = queued_seconds
        self.flop = flop
        self.outcome = Outcome.COMPLETED

    def __enter__(self) -> Execution:
        self._started = self._model.begin(self._core)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.outcome is Outcome.COMPLETED:
            self.outcome = Outcome.COMPLETED_WITH_ERR
        self._model.end(self._started, self.flop, self.outcome, self._queued_seconds)
