"""Being seen: a command that asks for all processes is one of them, as the original shows itself."""

from __future__ import annotations

import _socket

from neurontools.rpc.socket_path import attach_socket

_LONGEST_TOKEN_BYTES = 4096
_PATIENCE_SECONDS = 1.0


def observe(socket_path: str) -> _socket.socket | None:
    """A connection to the daemon's attach socket: while it is open, this process is listed as an observer.

    None when that can't be had, which stands in nobody's way.
    """
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(attach_socket(socket_path))
        # The daemon knows this process when it has sent the token, a line.
        token = b""
        while b"\n" not in token and len(token) < _LONGEST_TOKEN_BYTES:
            part = connection.recv(_LONGEST_TOKEN_BYTES)
            if not part:
                break
            token += part
    except OSError:
        connection.close()
        return None
    return connection
