"""A server that is no neurond, on a port of its own, over TLS or without."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.harness.waiting import HANG_SECONDS


@contextlib.contextmanager
def tls_server(files: tuple[Path, Path], *, protocols: tuple[str, ...] = ("h2",)) -> Iterator[int]:
    """The port of one that shows this certificate, and says nothing after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.set_alpn_protocols(list(protocols))

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(2**14)

    with _served(serve) as port:
        yield port


@contextlib.contextmanager
def plain_server(said: bytes) -> Iterator[int]:
    """The port of one that answers whatever it is told with this, and ends."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.recv(2**14)
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(2**14)

    with _served(serve) as port:
        yield port


@contextlib.contextmanager
def _served(serve: object) -> Iterator[int]:
    assert callable(serve)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        is_over = False

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if is_over:
                        return
                    connection.settimeout(HANG_SECONDS)
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield port
        finally:
            is_over = True
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()
