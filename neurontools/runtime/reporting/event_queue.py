"""The queue of calls that a training thread makes without waiting, and the handle of a loaded model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Any

from neurontools.runtime.reporting.process_counters import Outcome, ProcessCounters, StartedExecution

APPLY_BATCH = 256
"""So many notes are applied at once, by whoever takes the last of them; fewer than make the garbage collector start."""


class EventQueue:
    """The notes of one reporter.

    `ignored` counts the notes that could not be applied, `last_error` says why the latest of them could not.
    """

    def __init__(self) -> None:
        self.notes: deque[tuple[Any, ...]] = deque()
        self.ignored = 0
        self.last_error: str | None = None
        self._turn = Lock()

    def note(self, *note: Any) -> None:
        """Takes a note: a function and its arguments."""
        notes = self.notes
        notes.append(note)
        if len(notes) >= APPLY_BATCH:
            self.shorten()

    def shorten(self) -> None:
        """Applies the notes unless somebody is at it, who may be further up on this very stack.

        Two threads that come at the same moment may follow each other: the second then waits for the first, which
        computes for a fraction of a millisecond and never waits for I/O.
        """
        if not self._turn.locked():
            with self._turn:
                self._apply()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """All notes taken so far are applied, and nobody applies more in the meantime."""
        with self._turn:
            self._apply()
            yield

    def switch_off(self) -> None:
        """From here on notes vanish as they are taken."""
        self.notes = deque(maxlen=0)

    def _apply(self) -> None:
        notes = self.notes
        for _ in range(len(notes)):
            function, *arguments = notes.popleft()
            try:
                function(*arguments)
            except Exception as error:  # wrong arguments of the training code, which must not fail for them
                self.ignored += 1
                self.last_error = str(error) or type(error).__name__


class LoadedModel:
    """A model loaded with `Reporter.load_model`. Its methods never raise and never do I/O; any thread may call them."""

    __slots__ = ("_begin", "_clock", "_end", "_journal", "name")

    def __init__(self, name: str, journal: EventQueue, accounts: ProcessCounters, clock: Callable[[], float]) -> None:
        self.name = name
        self._journal = journal
        self._clock = clock
        self._begin = accounts.begin
        self._end = accounts.end

    def begin(self, core: int = 0, at_seconds: float | None = None) -> StartedExecution:
        """Notes that an execution begins on a core (process-local index) and answers what `end` needs.

        `at_seconds`: when, by the reporter's clock; None: now.
        """
        started = (self, core, self._clock() if at_seconds is None else at_seconds)
        self._journal.notes.append((self._begin, started))
        return started

    def end(
        self,
        started: StartedExecution,
        flop: int = 0,
        outcome: Outcome = Outcome.COMPLETED,
        queued_seconds: float = 0.0,
        at_seconds: float | None = None,
    ) -> None:
        """Notes that an execution has ended, and what it did.

        `flop`: floating point operations executed. `queued_seconds`: how long it waited before it began. `at_seconds`:
        when it ended, by the reporter's clock; None: now.
        """
        ended_seconds = self._clock() if at_seconds is None else at_seconds
        journal = self._journal
        notes = journal.notes
        notes.append((self._end, started, ended_seconds, flop, outcome, queued_seconds))
        if len(notes) >= APPLY_BATCH:
            journal.shorten()

    def execution(self, core: int = 0, flop: int = 0, queued_seconds: float = 0.0) -> Execution:
        """An execution as a context: it lasts as long as the block, and failed if an exception leaves it."""
        return Execution(self, core, flop, queued_seconds)


class Execution:
    """One execution of a model, for a `with` statement. `flop` and `outcome` may still be set inside the block."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self.outcome is Outcome.COMPLETED:
            self.outcome = Outcome.COMPLETED_WITH_ERR
        self._model.end(self._started, self.flop, self.outcome, self._queued_seconds)
