"""A server that is no neurond, on a port of its own, over TLS or without."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness.waiting import HANG_SECONDS


def tls_server(
    files: tuple[Path, Path], *, protocols: tuple[str, ...] = ("h2",)
) -> contextlib.AbstractContextManager[int]:
    """The port of one that shows this certificate, and says nothing after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.set_alpn_protocols(list(protocols))

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(2**14)

    return _served(serve)


def plain_server(said: bytes) -> contextlib.AbstractContextManager[int]:
    """The port of one that answers whatever it is told with this, and ends."""

    def serve(connection: socket.socket) -> None:
        connection.recv(2**14)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(2**14)

    return _served(serve)


@contextlib.contextmanager
def _served(serve: Callable[[socket.socket], None]) -> Iterator[int]:
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
                    with contextlib.suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield port
        finally:
            is_over = True
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()
