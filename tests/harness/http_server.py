"""A server in a thread of this process, on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import Site
from tests.harness.waiting import HANG_SECONDS
from tests.harness.web_site import Site as Client

T = TypeVar("T")


class Served:
    """A site that is served on `port`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, site: Site, limits: HttpLimits) -> None:
        self.loop = loop
        self.context: ssl.SSLContext | None = None

        async def start() -> int:
            self._server = HttpServer(site, name="pages", limits=limits)
            return await self._server.listen("127.0.0.1", 0)

        self.port = self.run(start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns in the server's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(HANG_SECONDS)

    def connections(self) -> int:
        """How many connections are being served, those of all servers of the loop together."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return self.run(count())

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from an address of this host: all of 127.0.0.0/8 are."""
        return socket.create_connection(("127.0.0.1", self.port), HANG_SECONDS, source_address=(address, 0))

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Reply:
        """The reply to one request."""
        with contextlib.closing(Client(self.port, self.context).connect()) as client:
            client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = client.getresponse()
            return Reply(response.status, response.headers, response.read())

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        self.run(stop())


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


Serve = Callable[..., Served]
