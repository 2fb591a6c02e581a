"""The server: takes connections within its limits and has them served.

Nothing is set up for a connection that is silent, not even TLS, and one that is slow makes room for those that come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio.sslproto import SSLProtocol
from typing import Any

from neurontools.net.http.connection import MAX_HEAD_BYTES, Connection
from neurontools.net.http.limits import Limits
from neurontools.net.http.site import Site
from neurontools.net.sockets.acceptor import Acceptor
from neurontools.net.sockets.listen_address import listeners
from neurontools.net.sockets.neighbourhood import neighbourhood
from neurontools.net.sockets.places import Place, Places
from neurontools.net.sockets.readiness import readable

_BACKLOG = 1024
_SHUTDOWN_SECONDS = 1.0  # for the end of TLS
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


# What asyncio keeps for each connection over TLS, from its first byte on. It is 256 KiB otherwise: 64 MiB for a crowd,
# which malloc doesn't give back. A TLS record has 16 KiB at most.
SSLProtocol.max_size = 2**14


class HttpServer:
    """Serves a site within limits. Belongs to the event loop's thread. `name` says in the log what listens."""

    def __init__(self, site: Site, *, name: str, limits: Limits) -> None:
        self._site = site
        self._name = name
        self._limits = limits
        self._places = Places(limits.connections, limits.of_an_address)
        self._handshakes = Places(max(1, limits.connections // 8), max(1, limits.of_an_address // 4))
        self._acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str | None, port: int) -> int:
        """Begins to serve, on all addresses when there is no host; returns the port. OSError when it can't be had."""
        opened = await listeners(host, port, backlog=_BACKLOG)
        # Over TLS there is no saying anything to somebody there is no descriptor for.
        refuse = _say_nothing if self._site.access.context else _refuse
        for listener in opened:
            self._acceptors.append(Acceptor(listener, self._take, name=self._name, refuse=refuse))
        bound: int = opened[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stops listening and drops the connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for task in self._tasks:
            task.cancel()

    def _take(self, connection: socket.socket, address: Any) -> None:
        task: asyncio.Task[None] | None = None

        def make_room() -> None:
            if task is not None:
                task.cancel()

        place = self._places.enter(neighbourhood(address[0]), make_room)
        if place is None:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection, place))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            connection.close()  # here too, for a task that was cancelled before it began
            place.leave()

        task.add_done_callback(ended)

    async def _serve(self, connection: socket.socket, place: Place) -> None:
        transport: asyncio.WriteTransport | None = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled when it made room
                async with asyncio.timeout(self._limits.head_seconds) as patience:
                    await readable(connection)
                    if not connection.recv(1, socket.MSG_PEEK):
                        return
                    reader, writer = await self._opened(connection, place)
                    transport = writer.transport
                    role = self._site.access.role(writer.get_extra_info("peercert"))
                    served = Connection((reader, writer), place, patience, self._limits, role)
                    await served.serve(self._site.answer)
                    patience.reschedule(asyncio.get_running_loop().time() + self._limits.write_seconds)
                    writer.close()
                    await writer.wait_closed()
        finally:
            if transport is not None:
                transport.abort()

    async def _opened(
        self, connection: socket.socket, place: Place
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams of a connection, behind the handshake where there is one."""
        loop, context = asyncio.get_running_loop(), self._site.access.context
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        if context is None:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
            return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        # A handshake takes 75 kB: fewer of them at a time than connections.
        handshake = self._handshakes.enter(place.peer, place.make_room)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=self._limits.head_seconds,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        finally:
            if handshake is not None:  # it always is: all of them wait
                handshake.leave()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _refuse(connection: socket.socket, _reason: str) -> None:
    connection.send(_REFUSAL)


def _say_nothing(_connection: socket.socket, _reason: str) -> None:
    pass
