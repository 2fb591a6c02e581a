"""The attach socket: where the kernel proves who a process is, and tells when it ends.

A process connects, is told its token in one line, and keeps the connection open. Its end, or the end of the process,
whichever comes first, ends its ownership: forked children may have inherited the connection, so the process is watched
too (pidfd).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
import struct
import time

from neurond.ownership.ledger import Ledger

MAX_CONNECTIONS = 4096
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet

_log = logging.getLogger(__name__)


class AttachProtocol(asyncio.Protocol):
    """One connection of a process to the attach socket."""

    def __init__(self, ledger: Ledger, connections: set[AttachProtocol], max_connections: int) -> None:
        self._ledger = ledger
        self._connections = connections
        self._max_connections = max_connections
        self._token = ""
        self._pidfd = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the process in and tells it its token."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (a stream server makes no other)
        self._transport = transport
        peer: socket.socket = transport.get_extra_info("socket")
        pid, uid, _ = _PEER_CREDENTIALS.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        )
        if pid == 0:
            self._refuse("the kernel gives no PID for this process: it is in a PID namespace that the daemon can't see")
            return
        if len(self._connections) >= self._max_connections:
            self._refuse(f"{self._max_connections} processes are attached; end some of them")
            return
        try:
            self._pidfd = _open_pidfd(peer, pid)
            if self._pidfd >= 0:
                asyncio.get_running_loop().add_reader(self._pidfd, transport.abort)
        except OSError as error:  # it has ended already, or the daemon is out of file descriptors
            self._refuse(f"PID {pid} can't be watched: {error.strerror}")
            return
        self._connections.add(self)
        token = secrets.token_hex(16)
        self._ledger.enter(token, pid, uid, time.time())
        self._token = token
        transport.write(f"{token}\n".encode())

    def data_received(self, data: bytes) -> None:
        """Nothing is ever said on this socket after the token: whatever comes is dropped."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets the process go."""
        del exc
        self._connections.discard(self)
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._token:
            self._ledger.leave(self._token)

    def close(self) -> None:
        """Ends the connection from the daemon's side."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, text: str) -> None:
        _log.warning("attach refused: %s", text)
        if self._transport is not None:
            self._transport.write(f"error: {text}\n".encode())
            self._transport.close()


class AttachSocket:
    """The listening attach socket of a daemon."""

    def __init__(self, ledger: Ledger, max_connections: int = MAX_CONNECTIONS) -> None:
        self._ledger = ledger
        self._max_connections = max_connections
        self._connections: set[AttachProtocol] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Serves on a bound Unix socket, which belongs to this object from here on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: AttachProtocol(self._ledger, self._connections, self._max_connections),
            sock=listener,
            backlog=1024,
        )

    def close(self) -> None:
        """Stops listening and ends all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()


def _open_pidfd(peer: socket.socket, pid: int) -> int:
    """A descriptor that becomes readable when the peer ends; -1 where the kernel offers none.

    OSError when the peer has ended already or no more files can be opened.
    """
    try:
        return int(struct.unpack("i", peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return -1
