"""A server that is no neurond, on a port of its own, over TLS or without."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from tests.harness.raw_server import RawServer


@contextlib.contextmanager
def tls_server(files: tuple[Path, Path], *, protocols: tuple[str, ...] = ("h2",)) -> Iterator[int]:
    """The port of one that shows this certificate, and says nothing after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.set_alpn_protocols(list(protocols))

    def shake_hands(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(2**14)

    with contextlib.closing(RawServer()) as server:
        server.behave = shake_hands
        yield server.port


@contextlib.contextmanager
def plain_server(greeting: bytes) -> Iterator[int]:
    """The port of one that says this to everybody, and no more."""
    with contextlib.closing(RawServer()) as server:
        server.reply_with(greeting)
        yield server.port
