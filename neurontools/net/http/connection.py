"""One connection of a client: reads requests, with h11, and writes responses, until either side ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from http import HTTPStatus

import h11

from neurontools.net.http.compression import Document, accepts_gzip
from neurontools.net.http.limits import Limits
from neurontools.net.http.request import Request, request_of
from neurontools.net.http.response import Response, refusal
from neurontools.net.sockets.places import Place
from neurontools.net.tls.subjects import Role

MAX_HEAD_BYTES = 16 * 2**10
MAX_BODY_BYTES = 4 * 2**10
_LINGER_SECONDS = 1.0
_UNSENT_STREAM_BYTES = 16 * 2**10  # that wait in the kernel for a client that reads slowly
_PIECE_BYTES = 2**16

Answer = Callable[[Request], Response]


class Connection:
    """Serves a client over streams. `patience` is the time limit of the task it runs in, `role` that of the client."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        place: Place,
        patience: asyncio.Timeout,
        limits: Limits,
        role: Role | None = Role.FULL,
    ) -> None:
        self._reader, self._writer = streams
        self._place = place
        self._patience = patience
        self._limits = limits
        self._role = role
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._writer.transport.set_write_buffer_limits(_PIECE_BYTES)

    async def serve(self, answer: Answer) -> None:
        """Answers requests until the connection is to end. OSError and TimeoutError when the client ends it."""
        while (request := await self._request()) is not None:
            self._place.busy()
            response = request if isinstance(request, Response) else answer(request)
            await self._respond(response, request if isinstance(request, Request) else None)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._linger()
                return
            self._http.start_next_cycle()
            self._place.wait()
            if not self._http.trailing_data[0]:
                self._wait_at_most(self._limits.idle_seconds)

    async def _request(self) -> Request | Response | None:
        """The next request, or what a client that doesn't speak HTTP is answered; None at the end."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                began = bool(self._http.trailing_data[0])
                data = await self._reader.read(MAX_HEAD_BYTES)
                if not began:
                    self._wait_at_most(self._limits.head_seconds)
                self._http.receive_data(data)
            if not isinstance(event, h11.Request):
                return None
            request = request_of(event.method, event.target, list(event.headers), self._role)
            if _has_short_body(request):
                return replace(request, body=await self._body())
            self._http.next_event()  # the end of the request, unless it has a body, which nobody reads
        except h11.RemoteProtocolError as error:
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return None
            return refusal(error.error_status_hint, str(error))
        return request

    async def _body(self) -> bytes:
        """What follows the head of a request that says that this is short."""
        parts = []
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(MAX_BODY_BYTES))
        return b"".join(parts)

    async def _respond(self, response: Response, request: Request | None) -> None:
        headers = [("Date", _http_date()), ("Content-Type", response.content_type), *response.headers]
        content = response.body
        if isinstance(content, Document):
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
        else:
            await self._write(head or b"")
            await self._stream(content)
        await self._write(self._http.send(h11.EndOfMessage()) or b"")

    async def _send(self, head: bytes, content: bytes) -> None:
        """Sends in pieces, so that a client that doesn't read keeps no copy of the whole in the transport's buffer."""
        for start in range(0, len(content), _PIECE_BYTES):
            await self._write(head + (self._http.send(h11.Data(content[start : start + _PIECE_BYTES])) or b""))
            head = b""
        await self._write(head)

    async def _stream(self, pieces: AsyncGenerator[bytes, None]) -> None:
        """Sends what comes when it comes. Whatever the client says or does meanwhile is its end."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (coroutines run in tasks)

        def end(gone: asyncio.Future[bytes]) -> None:
            with contextlib.suppress(OSError):
                gone.result()
            task.cancel()

        connection = self._writer.get_extra_info("socket")
        if connection is not None:  # what comes later takes the place of what would wait
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_STREAM_BYTES)
        gone = asyncio.ensure_future(self._reader.read(1))
        gone.add_done_callback(end)
        try:
            async with contextlib.aclosing(pieces):
                self._patience.reschedule(None)
                async for piece in pieces:
                    if piece:
                        await self._write(self._http.send(h11.Data(piece)) or b"")
                        self._patience.reschedule(None)
        finally:
            gone.remove_done_callback(end)
            gone.cancel()

    async def _write(self, data: bytes) -> None:
        self._wait_at_most(self._limits.write_seconds)
        if data:
            self._writer.write(data)
        await self._writer.drain()

    async def _linger(self) -> None:
        """Reads on until the client ends: closing with something unread would take the response back (a reset)."""
        if not self._writer.can_write_eof():  # TLS has an end of its own
            return
        self._place.wait()
        self._wait_at_most(_LINGER_SECONDS)
        self._writer.write_eof()
        while await self._reader.read(_PIECE_BYTES):
            pass

    def _wait_at_most(self, seconds: float) -> None:
        self._patience.reschedule(self._loop.time() + seconds)


def _has_short_body(request: Request) -> bool:
    """Whether it is a POST that says how long its body is, and that is not long."""
    length = request.header("content-length")
    return request.method == "POST" and length.isdecimal() and len(length) < 6 and int(length) <= MAX_BODY_BYTES


def _http_date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
