"""Terminal support for Textual: non-blocking output, keys typed between two pages, and exit signals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TextIO

from textual.app import App


class TerminalOutput:
    """Standard output that tolerates a closed terminal. After the close, drops all output and calls `on_end` once.

    The event loop's thread calls `write_at_once`. Textual's writer thread calls `write` and `flush`, which never raise:
    an exception would end the writer thread, and the event loop would wait for that thread forever.
    """

    def __init__(self, file: TextIO, on_end: Callable[[], object]) -> None:
        self._descriptor = file.fileno()
        self._encoding = file.encoding
        self._on_end: Callable[[], object] | None = on_end
        self._at_once: int | None = None
        self._handed_over = self._written = 0  # number of texts passed to the writer thread, and written by it

    def open(self) -> None:
        """Opens a second, non-blocking descriptor of the terminal.

        O_NONBLOCK on the inherited descriptor would also affect the shell, which shares it.
        """
        self.close()
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._at_once = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        except OSError:
            self._at_once = None

    def close(self) -> None:
        """Closes the non-blocking descriptor, so that all output goes through the writer thread."""
        descriptor, self._at_once = self._at_once, None
        if descriptor is not None:
            os.close(descriptor)

    def write_at_once(self, text: str) -> str:
        """Writes as much as the terminal accepts without blocking.

        Returns the unwritten rest, which the caller must pass to the writer thread.
        """
        if self._at_once is not None and self._handed_over == self._written:
            data = text.encode(self._encoding, "surrogateescape")
            try:
                count = os.write(self._at_once, data)
            except OSError:  # the terminal is full or closed; the writer thread handles both cases
                count = 0
            text = data[count:].decode(self._encoding, "surrogateescape")
        if text:
            self._handed_over += 1
        return text

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> None:
        """Writes the whole text. Blocks while the terminal accepts no output."""
        try:
            rest = memoryview(text.encode(self._encoding, "surrogateescape"))
            while rest and self._on_end is not None:
                rest = rest[os.write(self._descriptor, rest) :]
        except (OSError, ValueError):
            self._end()
        self._written += 1

    def flush(self) -> None:
        """Does nothing: `write` does not buffer."""

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


_MOST_KEYS = 256

TypedKey = tuple[str, str | None]
"""Textual's name of a key, and the character that the key types, if any."""


class TypedAhead:
    """Stores keys that are typed between two pages, from `begin` until `deliver`. Not thread-safe."""

    def __init__(self) -> None:
        self.is_collecting = False  # true after the user left a page: keys are stored for the next page
        self._waiting: list[TypedKey] = []
        self._unread: list[TypedKey] = []

    def begin(self) -> None:
        self.is_collecting = True

    def add(self, key: str, character: str | None, *, is_unread: bool = False) -> None:
        """Stores a key. `is_unread` marks a key from the driver, which was typed later than the keys from the page."""
        keys = self._unread if is_unread else self._waiting
        if len(keys) < _MOST_KEYS:
            keys.append((key, character))

    def deliver(self, press: Callable[[str, str | None], object], later: Iterable[TypedKey] = ()) -> None:
        """Passes the stored keys, then `later`, to `press`. If a key closes the page, stores the keys after it."""
        keys = [*self._waiting, *self._unread, *later]
        self.forget()
        for key, character in keys:
            if self.is_collecting:
                self.add(key, character)
            else:
                press(key, character)

    def forget(self) -> None:
        self.is_collecting = False
        self._waiting, self._unread = [], []


class ExitSignals(Protocol):
    """Reports the signals that must end the application."""

    def on_signal(self, callback: Callable[[int], object]) -> None:
        """Calls `callback` with the number of each signal: immediately for past signals, later in a signal handler."""


def exit_on_signals(app: App[Any], endings: ExitSignals | None) -> None:
    """Makes the signals from `endings` end a running application with exit code 128 + signal number."""
    if endings is None:
        return
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        with suppress(RuntimeError):  # the event loop may be closed already
            loop.call_soon_threadsafe(lambda: app.exit(return_code=128 + number))

    endings.on_signal(end)
