"""Who is at the other end of a Unix socket, by the word of the kernel."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass

from neurontools.net.tls.subjects import Role

_UCRED = struct.Struct("iII")  # pid, uid, gid
_SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet


@dataclass(frozen=True, slots=True)
class Credentials:
    """A process and its user as they were when it connected.

    `pid` is None where the process is in a PID namespace that the daemon can't see.
    """

    pid: int | None
    uid: int

    @property
    def role(self) -> Role:
        """Who may use the socket may see all."""
        return Role.FULL

    @property
    def accounts(self) -> tuple[tuple[str, int] | None, tuple[str, int]]:
        """Whose limits hold for it: its process, where that is known, and its user."""
        return None if self.pid is None else ("PID", self.pid), ("user", self.uid)


def credentials(connection: socket.socket) -> Credentials:
    """Who connected; OSError when the kernel doesn't tell."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Credentials(pid or None, uid)


def open_pidfd(connection: socket.socket, pid: int) -> int:
    """A descriptor that becomes readable when the peer ends; -1 where the kernel offers none.

    OSError when the peer has ended already or no more files can be opened.
    """
    try:
        return int(struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return -1
