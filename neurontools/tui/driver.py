"""The terminal driver: Textual's own, on standard output, continuing the first frame that is on the screen already."""

from __future__ import annotations

import sys
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

_ENTER_ALTERNATE_SCREEN = "\x1b[?1049h"


class ContinuingDriver(LinuxDriver):
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
