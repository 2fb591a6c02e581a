"""The training side's handle of a loaded model, and its executions."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from neurontools.runtime.reporting.accounts import Accounts, Started
from neurontools.runtime.reporting.journal import LONG, Journal
from neurontools.runtime.reporting.kinds import Outcome


class LoadedModel:
    """A model loaded with `Reporter.load_model`. Its methods never raise and never do I/O; any thread may call them."""

    __slots__ = ("_begin", "_clock", "_end", "_journal", "name")

    def __init__(self, name: str, journal: Journal, accounts: Accounts, clock: Callable[[], float]) -> None:
        self.name = name
        self._journal = journal
        self._clock = clock
        self._begin = accounts.begin
        self._end = accounts.end

    def begin(self, core: int = 0, at_seconds: float | None = None) -> Started:
        """Notes that an execution begins on a core (process-local index) and answers what `end` needs.

        `at_seconds`: when, by the reporter's clock; None: now.
        """
        started = (self, core, self._clock() if at_seconds is None else at_seconds)
        self._journal.notes.append((self._begin, started))
        return started

    def end(
        self,
        started: Started,
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
        if len(notes) >= LONG:
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
