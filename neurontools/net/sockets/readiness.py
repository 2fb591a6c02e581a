"""Waiting in an event loop until a socket can be read or written, without anything being set up for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable


async def readable(connection: socket.socket) -> None:
    """Returns when the other end has said something, or has gone."""
    loop = asyncio.get_running_loop()
    await _ready(connection, loop.add_reader, loop.remove_reader)


async def writable(connection: socket.socket) -> None:
    """Returns when there is room for more, or the other end has gone."""
    loop = asyncio.get_running_loop()
    await _ready(connection, loop.add_writer, loop.remove_writer)


async def _ready(
    connection: socket.socket, add: Callable[..., None], remove: Callable[[socket.socket], object]
) -> None:
    is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ready() -> None:
        remove(connection)
        if not is_ready.done():
            is_ready.set_result(None)

    add(connection, ready)
    try:
        await is_ready
    finally:
        remove(connection)
