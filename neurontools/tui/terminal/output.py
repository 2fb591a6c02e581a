"""What is drawn, written at once where the terminal takes it, else by Textual's thread, which may wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO


class TerminalOutput:
    """Standard output until it is gone; then what is written goes nowhere, and `on_end` is called, once.

    `write_at_once` is for the event loop's thread. `write` and `flush` are for the thread that writes: an error in it
    would end it, and whoever gives it more would wait for ever.
    """

    def __init__(self, file: TextIO, on_end: Callable[[], object]) -> None:
        self._descriptor = file.fileno()
        self._encoding = file.encoding
        self._on_end: Callable[[], object] | None = on_end
        self._at_once: int | None = None
        self._handed_over = self._written = 0  # pieces that the thread got, and has written

    def open(self) -> None:
        """Have a way that never waits, where the terminal can be opened anew: a flag on ours is the shell's too."""
        self.close()
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._at_once = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        except OSError:
            self._at_once = None

    def close(self) -> None:
        """From now on all goes by the thread; may be called again."""
        descriptor, self._at_once = self._at_once, None
        if descriptor is not None:
            os.close(descriptor)

    def write_at_once(self, text: str) -> str:
        """Write what the terminal takes without waiting; what is left of it then goes to the thread."""
        if self._at_once is not None and self._handed_over == self._written:
            data = text.encode(self._encoding, "surrogateescape")
            try:
                count = os.write(self._at_once, data)
            except OSError:  # it takes nothing now, or is gone: the thread will see which
                count = 0
            text = data[count:].decode(self._encoding, "surrogateescape")
        if text:
            self._handed_over += 1
        return text

    def fileno(self) -> int:
        """The descriptor of standard output."""
        return self._descriptor

    def write(self, text: str) -> None:
        """Write all of it, however long the terminal takes."""
        try:
            rest = memoryview(text.encode(self._encoding, "surrogateescape"))
            while rest and self._on_end is not None:
                rest = rest[os.write(self._descriptor, rest) :]
        except (OSError, ValueError):
            self._end()
        self._written += 1

    def flush(self) -> None:
        """Nothing is kept back."""

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
