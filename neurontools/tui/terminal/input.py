"""What is typed, read by the event loop itself.

Textual reads in a thread, which hands each key to the loop: on a busy host that is one more wait for a vCPU for every
key, and the thread looks ten times a second whether it is to end.
"""

from __future__ import annotations

import asyncio
import os
import select
from codecs import getincrementaldecoder
from collections.abc import Callable

from textual import constants
from textual._xterm_parser import XTermParser
from textual.message import Message

_MOST_BYTES = 4096
_MOST_LAST_READS = 16
_AFTER_ESCAPE_SECONDS = constants.ESCAPE_DELAY + 0.001  # then Esc was a key of its own


class TerminalInput:
    """Reads a terminal from `begin` to `end` or `finish`. `take` gets each message; `on_end` is called when there is
    no terminal any more."""

    def __init__(self, descriptor: int, take: Callable[[Message], object], on_end: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._parser = XTermParser()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._waiting: asyncio.TimerHandle | None = None
        self._is_reading = False

    def begin(self) -> None:
        """Read from now on, whatever came before forgotten."""
        self._parser = XTermParser()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._loop.add_reader(self._descriptor, self._read)
        self._is_reading = True

    def end(self) -> None:
        """Read no more; may be called again."""
        self._loop.remove_reader(self._descriptor)
        self._is_reading = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def finish(self) -> None:
        """Read what has been typed already, and no more; may be called again."""
        for _ in range(_MOST_LAST_READS):
            if not self._is_reading or not select.select([self._descriptor], [], [], 0)[0]:
                break
            self._read()
        self.end()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _MOST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.end()
            self._on_end()
            return
        if self._waiting is not None:
            self._waiting.cancel()
        for message in self._parser.feed(self._decode(data)):
            self._take(message)
        self._waiting = self._loop.call_later(_AFTER_ESCAPE_SECONDS, self._after_escape)

    def _after_escape(self) -> None:
        self._waiting = None
        for message in self._parser.tick():
            self._take(message)
