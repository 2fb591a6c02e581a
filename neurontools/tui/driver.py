"""The terminal driver: Textual's own, on standard output, continuing the first frame that is on the screen already."""

from __future__ import annotations

import sys
import termios
from contextlib import suppress
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from neurontools.text.screen import terminal_size

_ENTER_ALTERNATE_SCREEN = "\x1b[?1049h"


class Driver(LinuxDriver):
    """Has our own idea of the terminal's size, which the first frame has too."""

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
        assert sys.__stdout__ is not None  # noqa: S101
        self._file = sys.__stdout__
        self._is_entered = False

    def write(self, data: str) -> None:
        """Write to the terminal."""
        if data == _ENTER_ALTERNATE_SCREEN and not self._is_entered:
            self._is_entered = True
            return
        super().write(data)
