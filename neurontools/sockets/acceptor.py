"""Takes connections from a listening socket, also when the process is out of descriptors or memory.

asyncio's own servers try again at once then, in a loop that writes a traceback each time. Here those who wait are
refused with a word, in a descriptor that is kept for them; then accepting rests for a moment, so that nothing spins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

REST_SECONDS = 0.1
TOLD_EVERY_SECONDS = 60.0
_AT_ONCE = 16  # connections that are taken before the event loop serves others

_log = logging.getLogger(__name__)

Take = Callable[[socket.socket, Any], None]
"""Is given each connection, non-blocking, and its address; the connection belongs to it."""


class Acceptor:
    """Hands the connections to a listening socket, which belongs to it, to `take`. Belongs to the event loop's thread.

    `name` says in the log what listens. `refusal` is written to connections that there is no descriptor for.
    """

    def __init__(self, listener: socket.socket, take: Take, *, name: str, refusal: bytes = b"") -> None:
        listener.setblocking(False)
        self._listener = listener
        self._take = take
        self._name = name
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._spare = _spare()
        self._told_at_seconds: float | None = None
        self._refused = 0  # since that was told
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stops listening; what has been taken stays open."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._out_of(error)
                return
            connection.setblocking(False)
            self._take(connection, address)

    def _out_of(self, error: OSError) -> None:
        """Refuses who waits, as far as the spare descriptor allows it, and rests."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):  # nobody waits any more, or another thread was faster
                for _ in range(_AT_ONCE):
                    self._refuse()
            self._spare = _spare()
        self._tell(error)
        self._loop.remove_reader(self._listener)
        self._resting = self._loop.call_later(REST_SECONDS, self._go_on)

    def _refuse(self) -> None:
        connection, _ = self._listener.accept()
        self._refused += 1
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(self._refusal)
            # What it has sent by now is read, or closing would take the refusal back (a reset).
            connection.recv(2**16)

    def _go_on(self) -> None:
        self._resting = None
        if self._spare is None:
            self._spare = _spare()
        self._loop.add_reader(self._listener, self._accept)

    def _tell(self, error: OSError) -> None:
        now = time.monotonic()
        if self._told_at_seconds is not None and now - self._told_at_seconds < TOLD_EVERY_SECONDS:
            return
        self._told_at_seconds = now
        _log.warning(
            "%s: connections can't be taken: %s; refused since last told: %d; raise the limit of open files, or end"
            " those that hold many connections",
            *(self._name, error.strerror, self._refused),
        )
        self._refused = 0


def _spare() -> int | None:
    """A descriptor that stands for none, to be given up when there is no other; None when there is none to be had."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
