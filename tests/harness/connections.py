"""Connections of tests to servers, as a client sees them."""

from __future__ import annotations

import socket
import ssl

from tests.harness.waiting import HANG_SECONDS


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("there is nobody at the other end")


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended it; whatever it sent before is read."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    finally:
        connection.settimeout(HANG_SECONDS)
    return True
