"""Connections of tests to servers, as a client sees them."""

from __future__ import annotations

import socket

from tests.harness.waiting import HANG_SECONDS


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
