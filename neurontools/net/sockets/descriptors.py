"""Descriptors that come along with what is said on a Unix socket."""

from __future__ import annotations

import array
import os
import socket


def receive(connection: socket.socket, most_bytes: int, flags: int = 0) -> tuple[bytes, int | None]:
    """As `recv`, and the descriptor that came with it, close-on-exec, which is the caller's; further ones are closed.

    (`socket.recv_fds` of Python 3.11 drops its flags.)
    """
    found = array.array("i")
    space = socket.CMSG_LEN(found.itemsize)
    said, ancillary, _, _ = connection.recvmsg(most_bytes, space, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for more in found[1:]:
        os.close(more)
    return said, found[0] if found else None
