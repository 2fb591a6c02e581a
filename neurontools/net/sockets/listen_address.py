"""Addresses to listen on, as Prometheus's own tools write them: ":8000", "127.0.0.1:8000", "[::1]:8000"."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any


def listen_address(text: str) -> tuple[str | None, int]:
    """Host and port; no host, None, means all. ValueError says what is wrong."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(
            f"{text[:60]!r} has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, "
            "or :8000 for all addresses"
        )
    if ":" in bare and bare == host:
        raise ValueError(f"{text[:60]!r}: put an IPv6 address into brackets, such as [::1]:8000")
    return bare or None, int(port)


async def listeners(host: str | None, port: int, *, backlog: int) -> list[socket.socket]:
    """Listening TCP sockets, one for each address that the host has; no host means all. OSError when there are none.

    With port 0 the kernel chooses one, the same for all of them if it can be had.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = opened[0].getsockname()[1] if opened else port
            try:
                opened.append(_listening(family, (address[0], chosen, *address[2:]), backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # a host without IPv6 has names with such addresses all the same
    except OSError:
        for each in opened:
            each.close()
        raise
    if not opened:
        raise missing or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return opened


def _listening(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
