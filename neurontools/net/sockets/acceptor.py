"""Takes connections from a listening socket, also when the process is out of descriptors or memory.

asyncio's own servers try again at once then, in a loop that writes a traceback each time. Here those who wait are
refused with a word, in a descriptor that is kept for them; then accepting rests for a moment, so that nothing spins.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from neurontools.util.rate_limited_log import RateLimitedLogger

REST_SECONDS = 0.1
_AT_ONCE = 16  # connections that are taken before the event loop serves others
_NO_FILES = (errno.EMFILE, errno.ENFILE)

_tell = RateLimitedLogger(logging.getLogger(__name__), logging.WARNING)

Take = Callable[[socket.socket, Any], None]
"""Is given each connection, non-blocking, and its address; the connection belongs to it."""

Refuse = Callable[[socket.socket, str], None]
"""Is shown a connection that there is no descriptor for, and the reason, which it may send; it leaves it open."""


class Acceptor:
    """Hands the connections to a listening socket, which belongs to it, to `take`. Belongs to the event loop's thread.

    `name` says in the log what listens. `refuse` is shown those that there is no descriptor for.
    """

    def __init__(
        self, listener: socket.socket, take: Take, *, name: str, refuse: Refuse = lambda _connection, _reason: None
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._take = take
        self._name = name
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._spare: int | socket.socket | None = _spare()
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stops listening; what has been taken stays open."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._let_go_of_spare()

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
        if error.errno in _NO_FILES:
            for _ in range(_AT_ONCE):
                if not self._refuse_one(error.strerror or str(error)):
                    break
        _tell(
            "%s: connections can't be taken: %s; raise the limit of open files, or end those who hold many",
            self._name,
            error.strerror,
        )
        self._loop.remove_reader(self._listener)
        self._resting = self._loop.call_later(REST_SECONDS, self._go_on)

    def _refuse_one(self, reason: str) -> bool:
        self._let_go_of_spare()
        try:
            connection, _ = self._listener.accept()
        except OSError:  # nobody waits any more, or another thread was faster
            return False
        # It stands in for the spare until the next is refused: who is told why must have the time to read it.
        self._spare = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            self._refuse(connection, f"there is no descriptor for it ({reason})")
            # What it has sent by now is read, or closing would take the refusal back (a reset).
            connection.recv(2**16)
        return True

    def _go_on(self) -> None:
        self._resting = None
        self._let_go_of_spare()
        self._spare = _spare()
        self._loop.add_reader(self._listener, self._accept)

    def _let_go_of_spare(self) -> None:
        spare, self._spare = self._spare, None
        if isinstance(spare, socket.socket):
            spare.close()
        elif spare is not None:
            os.close(spare)


def _spare() -> int | None:
    """A descriptor that stands for none, to be given up when there is no other; None when there is none to be had."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
