"""Notes of what happened, taken by any thread without waiting and applied one after the other.

A note is a tuple of a function and its arguments. Taking one is an append to a deque, which is atomic with the GIL and
on free-threaded builds, and also when a finalizer or a signal handler interrupts another note: no note is lost, and
those of one thread stay in order. Applying is done by one thread at a time, so what the notes change needs no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

LONG = 256
"""So many notes are applied at once, by whoever takes the last of them; fewer than make the garbage collector start."""


class Journal:
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
        if len(notes) >= LONG:
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
