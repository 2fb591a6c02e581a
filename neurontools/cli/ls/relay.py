"""`neuron-ls --relay`: connects standard input and output to the daemon, for viewers on another host."""

from __future__ import annotations

import os
import selectors
import socket

from neurontools.rpc.ask import NoDaemon
from neurontools.util.errors import EXIT_NO_DAEMON

_CHUNK_BYTES = 2**16
_STDIN, _STDOUT = 0, 1


class RelayQuery:
    """Copies standard input to the daemon, and its replies to standard output, until one side closes."""

    exit_code = 0
    interval_seconds: float | None = None

    def __init__(self, given: dict[str, str]) -> None:
        del given

    def answer(self, path: str) -> str:
        """Relays bytes until one side closes, then returns "". Raises NoDaemon if the connection fails."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(path)
            except OSError as error:
                is_absent = isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError)
                cause = (error.strerror or str(error)).lower()
                raise NoDaemon(
                    f"no monitor daemon at unix:{path} ({cause}); start neurond there",
                    EXIT_NO_DAEMON,
                    is_absent=is_absent,
                ) from error
            _relay_streams(connection)
        return ""

    def answer_from_devices(self) -> str | None:
        """Raises NoDaemon, because relaying needs a daemon."""
        raise NoDaemon("no monitor daemon on this host; start neurond", EXIT_NO_DAEMON, is_absent=True)


def _relay_streams(connection: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        try:
            selector.register(_STDIN, selectors.EVENT_READ)
        except PermissionError:  # epoll rejects regular files and /dev/null as standard input
            while chunk := os.read(_STDIN, _CHUNK_BYTES):
                connection.sendall(chunk)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    chunk = connection.recv(_CHUNK_BYTES)
                    if not chunk:
                        return
                    _write_stdout(chunk)
                else:
                    chunk = os.read(_STDIN, _CHUNK_BYTES)
                    if not chunk:
                        return
                    connection.sendall(chunk)


def _write_stdout(chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(_STDOUT, rest) :]
