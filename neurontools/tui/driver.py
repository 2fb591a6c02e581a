"""The terminal driver: Textual's own, on standard output, continuing the first frame that is on the screen already."""

from __future__ import annotations

import asyncio
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from textual.drivers.linux_driver import LinuxDriver

from neurontools.text.screen import terminal_size

_ENTER_ALTERNATE_SCREEN = "\x1b[?1049h"


_MOST_WAITING = 2  # pieces of output; Textual has its event loop wait for the terminal when there are thirty


class _Terminal:
    """Standard output until it is gone; then what is written goes nowhere, and `on_end` is called, once.

    An error here would end the thread that writes, and whoever gives it more would wait for ever.
    """

    def __init__(self, file: TextIO, on_end: Callable[[], object]) -> None:
        self._file = file
        self._on_end: Callable[[], object] | None = on_end

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except (OSError, ValueError):
            self._end()

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class Driver(LinuxDriver):
    """Has our own idea of the terminal's size, which the first frame has too, and bears a terminal that goes away."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert sys.__stdout__ is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        hang_up = partial(self._app.exit, return_code=128 + signal.SIGHUP)
        self._file: Any = _Terminal(sys.__stdout__, lambda: loop.call_soon_threadsafe(hang_up))

    @property
    def is_behind(self) -> bool:
        """Whether the terminal has not taken yet what was written: another frame would only have keys wait."""
        writer = self._writer_thread
        return writer is not None and writer._queue.qsize() > _MOST_WAITING  # noqa: SLF001

    def suspend_application_mode(self) -> None:
        """Give the terminal to the shell as it was before the first frame."""
        super().suspend_application_mode()
        attributes = getattr(self._app, "attributes_before", None)
        if attributes is not None:
            with suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal_size()


class ContinuingDriver(Driver):
    """Doesn't enter the alternate screen a second time, which would clear the first frame."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_entered = False

    def write(self, data: str) -> None:
        """Write to the terminal."""
        if data == _ENTER_ALTERNATE_SCREEN and not self._is_entered:
            self._is_entered = True
            return
        super().write(data)
