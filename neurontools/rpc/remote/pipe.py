"""A connection of this host's, and the one over TLS that it stands for: bytes pass both ways without waiting."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl

from neurontools.rpc.remote.reasons import reason

_PIECE_BYTES = 2**14  # a whole record of TLS
_MOST_ROUNDS = 16  # before others have their turn
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# HTTP/2 frames (RFC 9113, section 6): empty SETTINGS, and the type of GOAWAY.
_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_GOAWAY = 7


class Pipe:
    """Both ends, non-blocking, which belong to it; for one thread."""

    def __init__(self, local: socket.socket, remote: ssl.SSLSocket) -> None:
        self.local = local
        self.remote = remote
        self._up = b""
        self._down = b""
        self._has_answered = False

    @property
    def wants(self) -> tuple[int, int]:
        """The events of the local and of the remote end in which `move` has something to do."""
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        local = (0 if self._up else read) | (write if self._down else 0)
        return local, (0 if self._down else read) | (write if self._up else 0)

    def move(self) -> bool:
        """Pass on what can be passed on now; False at the end, when the remote end is closed.

        The local end is told why, where that is all that it is told, and is still open then.
        """
        try:
            for _ in range(_MOST_ROUNDS):
                moved = self._move_once()
                if moved is None:
                    return self._end("it ended the connection")
                if not moved:
                    break
        except OSError as error:
            return self._end(reason(error))
        return True

    @property
    def is_unfinished(self) -> bool:
        """Whether something was decrypted that no selector tells of."""
        return not self._down and self.remote.pending() > 0

    def close(self) -> None:
        """Close both ends."""
        self.remote.close()
        self.local.close()

    def _move_once(self) -> bool | None:
        """Whether a piece came from either end; None when one has ended."""
        moved = False
        if not self._up:
            data = _received(self.local)
            if data == b"":
                return None
            self._up = data or b""
            moved = bool(data)
        if self._up:
            self._up = _sent(self.remote, self._up)
        if not self._down:
            data = _received(self.remote)
            if data == b"":
                return None
            self._down = data or b""
            moved = moved or bool(data)
        if self._down:
            self._has_answered = True
            self._down = _sent(self.local, self._down)
        return moved

    def _end(self, why: str) -> bool:
        self.remote.close()
        if self._has_answered:
            with contextlib.suppress(OSError):
                self.local.shutdown(socket.SHUT_WR)
        else:
            say(self.local, why)
        return False


def say(local: socket.socket, why: str) -> None:
    """Tell an HTTP/2 client why there is no connection."""
    payload = bytes(8) + why.encode("utf-8", "replace")  # of all streams, without an error's number
    with contextlib.suppress(OSError):
        local.send(_SETTINGS + len(payload).to_bytes(3) + bytes((_GOAWAY, 0)) + bytes(4) + payload)
        local.shutdown(socket.SHUT_WR)


def _received(end: socket.socket) -> bytes | None:
    try:
        return end.recv(_PIECE_BYTES)
    except _NOT_NOW:
        return None


def _sent(end: socket.socket, data: bytes) -> bytes:
    try:
        return data[end.send(data) :]
    except _NOT_NOW:
        return data
