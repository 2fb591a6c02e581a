"""One connection between a client and the server: bytes pass both ways, the client's at the pace it is allowed."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Sequence
from typing import ClassVar

from neurond.peers.frame_weight import FrameWeight

# What a client sends is weighed a piece at a time, so that a flood can't run up a large debt with one of them.
_weighed = memoryview(bytearray(2**13))
_answered = memoryview(bytearray(2**16))


class Relay:
    """Passes bytes until an end closes. `spend` is told the work in what the client sent and returns the seconds that
    nothing more is read from it; `on_end` is called once, when both ends are closed.

    What an end doesn't take at once is kept, and no more is read for it: one piece at most waits in either direction.
    """

    _piece: ClassVar = _weighed  # what is read of a client at a time
    _not_now: ClassVar[tuple[type[OSError], ...]] = (BlockingIOError, InterruptedError)

    __slots__ = ("_client", "_down", "_is_open", "_loop", "_on_end", "_rest", "_server", "_spend", "_up", "_weight")

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        spend: Callable[[float], float],
        on_end: Callable[[Relay], None],
    ) -> None:
        self._client = client
        self._server = server
        self._spend = spend
        self._on_end = on_end
        self._weight = FrameWeight()
        self._up = b""  # for the server
        self._down = b""  # for the client
        self._rest: asyncio.TimerHandle | None = None
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        # What waits in buffers for a slow reader is old when it reads it.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(_answered))
        self._loop.add_reader(client.fileno(), self._read_client)
        self._loop.add_reader(server.fileno(), self._read_server)

    def close(self) -> None:
        """Closes both ends."""
        if not self._is_open:
            return
        self._is_open = False
        if self._rest is not None:
            self._rest.cancel()
        for end in (self._client, self._server):
            self._loop.remove_reader(end.fileno())
            self._loop.remove_writer(end.fileno())
            end.close()
        self._on_end(self)

    @property
    def client(self) -> socket.socket:
        """The connection of the client."""
        return self._client

    def _read_client(self) -> None:
        data = self._received(self._client, self._piece)
        if not data:
            return
        wait_seconds = self._spend(self._weight.weigh(data))
        self._up = self._sent(self._server, data)
        if not self._is_open:
            return
        if self._up:
            self._loop.add_writer(self._server.fileno(), self._write_server)
        if wait_seconds > 0:
            self._rest = self._loop.call_later(wait_seconds, self._rested)
        if self._up or wait_seconds > 0:
            self._loop.remove_reader(self._client.fileno())

    def _rested(self) -> None:
        self._rest = None
        if is_gone(self._client):  # what it asked for before it left is for nobody
            self.close()
        else:
            self._read_client_again()

    def _read_client_again(self) -> None:
        if self._rest is None and not self._up:
            self._loop.add_reader(self._client.fileno(), self._read_client)

    def _write_server(self) -> None:
        self._up = self._sent(self._server, memoryview(self._up))
        if self._is_open and not self._up:
            self._loop.remove_writer(self._server.fileno())
            self._read_client_again()

    def _read_server(self) -> None:
        data = self._received(self._server, _answered)
        if not data:
            return
        self._down = self._sent(self._client, data)
        if self._down:
            self._loop.remove_reader(self._server.fileno())
            self._loop.add_writer(self._client.fileno(), self._write_client)

    def _write_client(self) -> None:
        self._down = self._sent(self._client, memoryview(self._down))
        if self._is_open and not self._down:
            self._loop.remove_writer(self._client.fileno())
            self._loop.add_reader(self._server.fileno(), self._read_server)

    def _received(self, end: socket.socket, piece: memoryview) -> memoryview:
        """What an end has sent, in `piece`; empty where there is nothing now. An end that is closed closes both."""
        try:
            size = end.recv_into(piece)
        except self._not_now:
            return piece[:0]
        except OSError:
            size = 0
        if not size:
            self.close()
        return piece[:size]

    def _sent(self, end: socket.socket, data: memoryview) -> bytes:
        """Sends what an end takes and returns the rest; an end that is gone closes both."""
        try:
            return bytes(data[end.send(data) :])
        except self._not_now:
            return bytes(data)
        except OSError:
            self.close()
            return b""


def is_gone(connection: socket.socket) -> bool:
    """Whether the other end is closed, however much of what it sent hasn't been read."""
    return bool(who_are_gone([connection]))


def who_are_gone(connections: Sequence[socket.socket]) -> set[socket.socket]:
    """Those whose other end is closed, of connections that are open here; one question to the kernel."""
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.POLLRDHUP)
    return {by_number[number] for number, _ in poll.poll(0)}
