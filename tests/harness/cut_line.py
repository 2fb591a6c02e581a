"""A line to a daemon that can be cut: a socket in between, which passes on what both sides say, as long as it may."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class CutLine:
    """Listens at `path` for connections to `daemon_path`.

    `reply_limit` is asked, with the first bytes that a client says, how many bytes of the replies come through; None:
    all. `cut` breaks all connections and admits none, `mend` ends that.
    """

    def __init__(
        self, path: Path, daemon_path: str, reply_limit: Callable[[bytes], int | None] = lambda _said: None
    ) -> None:
        self.path = str(path)
        self._daemon_path = daemon_path
        self._reply_limit = reply_limit
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            connections, self._open = self._open, set()
        for connection in connections:
            _close(connection)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        _close(self._server)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._server.accept()[0]
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                _close(client)
                return
            daemon = socket.socket(socket.AF_UNIX)
            self._open |= {client, daemon}
        with suppress(OSError):
            daemon.connect(self._daemon_path)
            data = client.recv(1 << 16)
            daemon.sendall(data)
            threading.Thread(target=_pass_on, args=(client, daemon, None), daemon=True).start()
            _pass_on(daemon, client, self._reply_limit(data))
        _close(client)
        _close(daemon)


def _pass_on(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data if limit is None else data[:limit])
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    return


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
