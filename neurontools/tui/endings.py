"""The signals that end an application while it has the terminal, which is to be given back as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from textual.app import App


class Endings(Protocol):
    """Signals that nobody else obeys while the application runs."""

    def on_signal(self, callback: Callable[[int], object]) -> None:
        """Calls `callback` in a signal handler with each signal's number, those that came before first."""


def end_by(app: App[Any], endings: Endings | None) -> None:
    """Have an application that is mounted end by these."""
    if endings is None:
        return
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has ended
            loop.call_soon_threadsafe(lambda: app.exit(return_code=128 + number))

    endings.on_signal(end)
