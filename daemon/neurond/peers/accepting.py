"""Accepting connections in the event loop, also when the daemon is out of file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

from neurond.system.seldom import Seldom

_AT_ONCE = 16  # connections accepted before the event loop sees to others
_PAUSE_SECONDS = 0.05
_NO_FILES = (errno.EMFILE, errno.ENFILE)

_tell = Seldom(logging.getLogger(__name__), logging.ERROR)


class Accepting:
    """Hands on each connection to a listening socket, which belongs to this object from here on.

    A connection that there is no descriptor for is taken with a spare one, shown to `refuse`, which may say why, and
    closed. Then, and when there is no memory, nothing is accepted for a moment, and one line a minute says so.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        refuse: Callable[[socket.socket, str], None] = lambda _connection, _reason: None,
    ) -> None:
        self._listener = listener
        self._take = take
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._spare: int | socket.socket = _spare()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stops accepting and closes the listening socket."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._let_go_of_spare()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(error)
                return
            connection.setblocking(False)
            self._take(connection)

    def _rest(self, error: OSError) -> None:
        """Refuses who waits, if that can be, and accepts nobody for a moment."""
        _tell("connections can't be accepted: %s; new ones are refused until that has passed", error.strerror)
        if error.errno in _NO_FILES:
            for _ in range(_AT_ONCE):
                if not self._refuse_one(error.strerror or str(error)):
                    break
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._go_on)

    def _refuse_one(self, reason: str) -> bool:
        self._let_go_of_spare()
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return False
        # It stands in for the spare until the next is refused: who is told why must have the time to read it.
        self._spare = connection
        connection.setblocking(False)
        self._refuse(connection, f"the daemon can't open more files ({reason})")
        return True

    def _go_on(self) -> None:
        self._pause = None
        self._let_go_of_spare()
        self._spare = _spare()
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _let_go_of_spare(self) -> None:
        spare, self._spare = self._spare, -1
        if isinstance(spare, socket.socket):
            spare.close()
        elif spare >= 0:
            os.close(spare)


def _spare() -> int:
    """A descriptor that is good for nothing but to be given up; -1 when there is none."""
    with contextlib.suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return -1
