"""The HTTP server: reads requests with h11 and writes responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import h11

from neurontools.net.acceptor import Acceptor, ConnectionLimiter, ConnectionSlot, client_key, listeners, wait_ready
from neurontools.net.http_site import (
    CompressibleDocument,
    HttpRequest,
    HttpResponse,
    Site,
    accepts_gzip,
    refusal,
    request_of,
)
from neurontools.net.tls import Role

MAX_HEAD_BYTES = 16 * 2**10
_LINGER_SECONDS = 1.0
_UNSENT_STREAM_BYTES = 16 * 2**10  # TCP_NOTSENT_LOWAT: limit of unsent bytes in the kernel for a slow client
_PIECE_BYTES = 2**16

Answer = Callable[[HttpRequest], HttpResponse]


class HttpConnection:
    """Serves one client. `patience` is the timeout of the connection's task; `role` is the client's role."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        slot: ConnectionSlot,
        patience: asyncio.Timeout,
        limits: HttpLimits,
        role: Role | None = Role.FULL,
    ) -> None:
        self._reader, self._writer = streams
        self._slot = slot
        self._patience = patience
        self._limits = limits
        self._role = role
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._writer.transport.set_write_buffer_limits(_PIECE_BYTES)

    async def serve(self, answer: Answer) -> None:
        """Answers requests until the connection ends. Raises OSError or TimeoutError if the client ends it."""
        while (request := await self._read_request()) is not None:
            self._slot.mark_busy()
            response = request if isinstance(request, HttpResponse) else await self._complete(answer(request))
            await self._respond(response, request if isinstance(request, HttpRequest) else None)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._linger()
                return
            self._http.start_next_cycle()
            self._slot.mark_waiting()
            if not self._http.trailing_data[0]:
                self._set_timeout(self._limits.idle_seconds)

    async def _read_request(self) -> HttpRequest | HttpResponse | None:
        """Reads the next request. Returns an error response to malformed HTTP, and None at the connection's end."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                began = bool(self._http.trailing_data[0])
                data = await self._reader.read(MAX_HEAD_BYTES)
                if not began:
                    self._set_timeout(self._limits.head_seconds)
                self._http.receive_data(data)
            if not isinstance(event, h11.Request):
                return None
            request = request_of(event.method, event.target, list(event.headers), self._role, str(self._slot.peer))
            if _has_ambiguous_body(request, event.http_version):
                return refusal(400, "Transfer-Encoding excludes Content-Length and HTTP/1.0; send one of them")
            if _has_short_body(request, self._limits.body_bytes):
                return replace(request, body=await self._read_body())
            self._http.next_event()  # consumes EndOfMessage of a request without a body; a longer body stays unread
        except h11.RemoteProtocolError as error:
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return None
            return refusal(error.error_status_hint, str(error))
        return request

    async def _complete(self, response: HttpResponse) -> HttpResponse:
        """Returns the response to send. Waits for a body that is an Awaitable, without a time limit."""
        body = response.body
        if not isinstance(body, Awaitable):
            return response
        self._patience.reschedule(None)
        complete = await body
        return replace(complete, headers=(*response.headers, *complete.headers))

    async def _read_body(self) -> bytes:
        parts = []
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(MAX_HEAD_BYTES))
        return b"".join(parts)

    async def _respond(self, response: HttpResponse, request: HttpRequest | None) -> None:
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        headers = [("Date", date), ("Content-Type", response.content_type), *response.headers]
        content = response.body
        if isinstance(content, CompressibleDocument):
            if content.compressible:
                headers.append(("Vary", "Accept-Encoding"))
            if content.compressible and request is not None and accepts_gzip(request.header("accept-encoding")):
                headers.append(("Content-Encoding", "gzip"))
                content = content.gzipped
            else:
                content = content.content
        if isinstance(content, bytes):
            headers.append(("Content-Length", str(len(content))))
        close = response.close or not isinstance(content, bytes) or self._http.their_state is not h11.DONE
        headers.append(("Connection", "close" if close else "keep-alive"))
        head = self._http.send(
            h11.Response(
                status_code=response.status, headers=headers, reason=HTTPStatus(response.status).phrase.encode()
            )
        )
        if request is not None and request.method == "HEAD":
            await self._write(head or b"")
        elif isinstance(content, bytes):
            await self._send(head or b"", content)
        elif isinstance(content, AsyncGenerator):
            await self._write(head or b"")
            await self._stream(content)
        await self._write(self._http.send(h11.EndOfMessage()) or b"")

    async def _send(self, head: bytes, content: bytes) -> None:
        """Sends a response in pieces, so that the transport buffers no copy of the whole response for a slow client."""
        for start in range(0, len(content), _PIECE_BYTES):
            await self._write(head + (self._http.send(h11.Data(content[start : start + _PIECE_BYTES])) or b""))
            head = b""
        await self._write(head)

    async def _stream(self, pieces: AsyncGenerator[bytes, None]) -> None:
        """Sends the pieces of a response as they come. Stops when the client sends data or disconnects."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - coroutines run in tasks

        def end(closed: asyncio.Future[bytes]) -> None:
            with contextlib.suppress(OSError):
                closed.result()
            task.cancel()

        connection = self._writer.get_extra_info("socket")
        if connection is not None:  # a short send queue, so that a slow client gets recent pieces
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_STREAM_BYTES)
        hangup = asyncio.ensure_future(self._reader.read(1))
        hangup.add_done_callback(end)
        try:
            async with contextlib.aclosing(pieces):
                self._patience.reschedule(None)
                async for piece in pieces:
                    if piece:
                        await self._write(self._http.send(h11.Data(piece)) or b"")
                        self._patience.reschedule(None)
        finally:
            hangup.remove_done_callback(end)
            hangup.cancel()

    async def _write(self, data: bytes) -> None:
        self._set_timeout(self._limits.write_seconds)
        if data:
            self._writer.write(data)
        await self._writer.drain()

    async def _linger(self) -> None:
        """Reads until the client closes: closing a socket with unread data would send a reset and drop the response."""
        if not self._writer.can_write_eof():  # TLS has its own close
            return
        self._slot.mark_waiting()
        self._set_timeout(_LINGER_SECONDS)
        self._writer.write_eof()
        while await self._reader.read(_PIECE_BYTES):
            pass

    def _set_timeout(self, seconds: float) -> None:
        self._patience.reschedule(self._loop.time() + seconds)


def _has_ambiguous_body(request: HttpRequest, http_version: bytes) -> bool:
    """Returns whether another server could see another end of the body, which is request smuggling (RFC 9112, 6.1)."""
    return "transfer-encoding" in request.headers and ("content-length" in request.headers or http_version < b"1.1")


def _has_short_body(request: HttpRequest, most_bytes: int) -> bool:
    length = request.header("content-length")
    return request.method == "POST" and length.isdecimal() and len(length) < 6 and int(length) <= most_bytes


_BACKLOG = 1024
_SHUTDOWN_SECONDS = 1.0  # for the TLS close
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


# asyncio's read buffers of 256 KiB per TLS connection would take 64 MiB for 256 connections, and malloc does not return
# this memory to the kernel. A TLS record has at most 16 KiB.
SSLProtocol.max_size = 2**14


class HttpServer:
    """Serves a site over HTTP, within `limits`. For the event loop's thread only. `name` is for the log."""

    def __init__(self, site: Site, *, name: str, limits: HttpLimits) -> None:
        self._site = site
        self._name = name
        self._limits = limits
        self._limiter = ConnectionLimiter(limits.connections, limits.of_an_address)
        self._handshakes = ConnectionLimiter(max(1, limits.connections // 8), max(1, limits.of_an_address // 4))
        self._acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str | None, port: int) -> int:
        """Starts listening and returns the port. Host None means all addresses. Raises OSError if it can't listen."""
        opened = await listeners(host, port, backlog=_BACKLOG)
        for listener in opened:
            self._acceptors.append(Acceptor(listener, self._accept_connection, name=self._name, refuse=self._refuse))
        bound: int = opened[0].getsockname()[1]
        return bound

    def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        self.disconnect_clients()

    def disconnect_clients(self) -> None:
        """Closes all connections, also streams. Clients may connect again."""
        for task in self._tasks:
            task.cancel()

    def _refuse(self, connection: socket.socket, _reason: str) -> None:
        if self._site.access.context is None:  # a client that uses TLS could not read this plain text
            connection.send(_REFUSAL)

    def _accept_connection(self, connection: socket.socket, address: Any) -> None:
        task: asyncio.Task[None] | None = None

        def make_room() -> None:
            if task is not None:
                task.cancel()

        slot = self._limiter.acquire(client_key(address[0]), make_room)
        if slot is None:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection, slot))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            connection.close()  # a task that was cancelled before its start did not close it
            slot.release()

        task.add_done_callback(ended)

    async def _serve(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        transport: asyncio.WriteTransport | None = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled by eviction
                async with asyncio.timeout(self._limits.head_seconds) as patience:
                    await wait_ready(connection)
                    if not connection.recv(1, socket.MSG_PEEK):
                        return
                    reader, writer = await self._open_streams(connection, slot)
                    transport = writer.transport
                    role = self._site.access.role(writer.get_extra_info("peercert"))
                    served = HttpConnection((reader, writer), slot, patience, self._limits, role)
                    await served.serve(self._site.answer)
                    patience.reschedule(asyncio.get_running_loop().time() + self._limits.write_seconds)
                    writer.close()
                    await writer.wait_closed()
        finally:
            if transport is not None:
                transport.abort()

    async def _open_streams(
        self, connection: socket.socket, slot: ConnectionSlot
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the streams of a connection. With TLS, performs the handshake first."""
        loop, context = asyncio.get_running_loop(), self._site.access.context
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        if context is None:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
            return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        # A TLS handshake takes 75 kB of memory, so handshakes have a lower limit than connections.
        handshake = self._handshakes.acquire(slot.peer, slot.make_room)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=self._limits.head_seconds,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        finally:
            if handshake is not None:  # always true: the limiter can evict an older handshake to admit this one
                handshake.release()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on connections and times. A connection counts even before its handshake and first request."""

    connections: int = 256
    of_an_address: int = 64
    # Limit for the handshake and the first request, then for each request from its first byte to its last.
    head_seconds: float = 5.0
    idle_seconds: float = 120.0  # longest time between two requests of a connection
    write_seconds: float = 30.0  # longest time for a client to read one piece of a response
    body_bytes: int = 4 * 2**10  # size of the largest request body that is read, below 100,000

    def with_files(self, most_files: int) -> HttpLimits:
        """Returns limits for a process that may open `most_files`, of which a quarter may be connections."""
        connections = max(2, min(self.connections, most_files // 4))
        share = min(self.of_an_address, connections // 2)
        return replace(self, connections=connections, of_an_address=share)
