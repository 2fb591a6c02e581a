"""The terminal driver: Textual's own, on standard output, continuing the first frame that is on the screen already."""

from __future__ import annotations

import asyncio
import signal
import sys
import termios
from contextlib import suppress
from functools import partial
from typing import Any

from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from neurontools.text.screen import terminal_size
from neurontools.tui.terminal.input import TerminalInput
from neurontools.tui.terminal.output import TerminalOutput

_ENTER_ALTERNATE_SCREEN = "\x1b[?1049h"
_MOST_WAITING = 2  # pieces of output; Textual has its event loop wait for the terminal when there are thirty


class Driver(LinuxDriver):
    """Has our own idea of the terminal's size, which the first frame has too, and bears a terminal that goes away.

    From a key to its answer all happens in the event loop's thread: on a busy host each thread in between is a wait of
    its own for a vCPU.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert sys.__stdout__ is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        hang_up = partial(self._app.exit, return_code=128 + signal.SIGHUP)
        self._output = TerminalOutput(sys.__stdout__, lambda: loop.call_soon_threadsafe(hang_up))
        self._file: Any = self._output
        self._input = TerminalInput(self.fileno, self.process_message, hang_up)

    @property
    def is_behind(self) -> bool:
        """Whether the terminal has not taken yet what was written: another frame would only have keys wait."""
        writer = self._writer_thread
        return writer is not None and writer._queue.qsize() > _MOST_WAITING  # noqa: SLF001

    def write(self, data: str) -> None:
        """Write to the terminal."""
        rest = self._output.write_at_once(data)
        if rest:
            super().write(rest)

    def send_message(self, message: Message) -> None:
        """Give the application a message, from the event loop's thread."""
        self._app.post_message(message)

    def start_application_mode(self) -> None:
        """Take the terminal over; not while another program has it."""
        self._output.open()
        self._key_thread = None
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._is_taken_over():
            self._input.begin()

    def _is_taken_over(self) -> bool:
        return self._key_thread is not None

    def disable_input(self) -> None:
        """Read no more."""
        self._input.end()
        super().disable_input()

    def close(self) -> None:
        """Write what is left."""
        super().close()
        self._output.close()

    def _run_input_thread(self) -> None:
        """Nothing: the event loop reads."""

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
