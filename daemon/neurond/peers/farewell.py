"""Telling those that are not let in why, in HTTP/2, and giving them the time to read it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

_TOLD_AT_ONCE = 32
_TIME_TO_READ_SECONDS = 1.0
# HTTP/2 frames (RFC 9113, section 6): empty SETTINGS, and the head of GOAWAY.
_SETTINGS_FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_GOAWAY = 7
_ENHANCE_YOUR_CALM = 11
_LAST_STREAM = 2**31 - 1


class Farewell:
    """Those that are refused, until they are closed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, socket.socket]] = deque()  # and when each is closed
        self._closing: asyncio.TimerHandle | None = None

    def refuse(self, connection: socket.socket, reason: str) -> None:
        """Says why, and closes later."""
        say(connection, reason)
        self.close_later(connection)

    def close_later(self, connection: socket.socket) -> None:
        """Closes a connection that was told why: what the client writes to a closed socket would be its error."""
        loop = asyncio.get_running_loop()
        if len(self._told) == _TOLD_AT_ONCE:
            self._told.popleft()[1].close()
        self._told.append((loop.time() + _TIME_TO_READ_SECONDS, connection))
        if self._closing is None:
            self._closing = loop.call_later(_TIME_TO_READ_SECONDS, self._close_told, loop)

    def close(self) -> None:
        """Closes all of them."""
        if self._closing is not None:
            self._closing.cancel()
        for _, connection in self._told:
            connection.close()
        self._told.clear()

    def _close_told(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: a flood that is refused leaves no timer for each of its connections."""
        while self._told and self._told[0][0] <= loop.time():
            self._told.popleft()[1].close()
        self._closing = loop.call_at(self._told[0][0], self._close_told, loop) if self._told else None


def say(connection: socket.socket, reason: str) -> None:
    """Tells an HTTP/2 client why it is not let in.

    Of a call that was certainly not looked at, grpcio would think no worse than to ask again, at once and without end.
    """
    last_stream_and_error = _LAST_STREAM.to_bytes(4) + _ENHANCE_YOUR_CALM.to_bytes(4)
    payload = last_stream_and_error + reason.encode()
    goaway = len(payload).to_bytes(3) + bytes((_GOAWAY, 0)) + bytes(4) + payload
    try:
        connection.send(_SETTINGS_FRAME + goaway)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # it is gone already
        return
