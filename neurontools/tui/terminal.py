"""Terminal around Textual: output that never blocks, keys typed between two pages, signals that end the application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TextIO

from textual.app import App


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


_MOST_KEYS = 256

TypedKey = tuple[str, str | None]
"""A key by Textual's name, and the character that it types."""


class TypedAhead:
    """Has the keys for the page that comes, from `begin` until that takes them. For the event loop's thread."""

    def __init__(self) -> None:
        self.is_kept = False  # the page was left for another one, which is to have what is typed
        self._waiting: list[TypedKey] = []
        self._unread: list[TypedKey] = []

    def begin(self) -> None:
        """The page has been left: what is typed from now on is for the next one."""
        self.is_kept = True

    def keep(self, key: str, character: str | None, *, is_unread: bool = False) -> None:
        """Keep a key. One that had been read when the page was left, and waited for it, goes before the others."""
        kept = self._unread if is_unread else self._waiting
        if len(kept) < _MOST_KEYS:
            kept.append((key, character))

    def deliver(self, press: Callable[[str, str | None], object], later: Iterable[TypedKey] = ()) -> None:
        """Press what was kept, then `later`; those behind one with which the page is left are kept for the next."""
        keys = [*self._waiting, *self._unread, *later]
        self.forget()
        for key, character in keys:
            if self.is_kept:
                self.keep(key, character)
            else:
                press(key, character)

    def forget(self) -> None:
        """The page that this was for has not come."""
        self.is_kept = False
        self._waiting, self._unread = [], []


class ExitSignals(Protocol):
    """Signals that nobody else obeys while the application runs."""

    def on_signal(self, callback: Callable[[int], object]) -> None:
        """Calls `callback` in a signal handler with the number of each signal, those that came before first."""


def exit_on_signals(app: App[Any], endings: ExitSignals | None) -> None:
    """Have an application that is mounted end by these."""
    if endings is None:
        return
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has ended
            loop.call_soon_threadsafe(lambda: app.exit(return_code=128 + number))

    endings.on_signal(end)
