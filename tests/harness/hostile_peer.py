"""A peer that does its worst to a daemon: hostile_peer.py SOCKET ATTACK.

Says "begun" when the attack is under way, goes on until its standard input closes, and then says "ended". Knows HTTP/2
by its bytes (RFC 9113), so that it can do what no client does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections import deque
from collections.abc import Callable

from neurontools.rpc import http2

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_STREAM, _END_HEADERS = 0x1, 0x4
_INITIAL_WINDOW_SIZE = 4
_CANCEL = (8).to_bytes(4)
_EMPTY_MESSAGE = bytes(5)
_AT_ONCE = 50


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def opened(path: str, window_bytes: int = 65535) -> socket.socket:
    """A connection on which the HTTP/2 preface was sent."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    settings = _INITIAL_WINDOW_SIZE.to_bytes(2) + window_bytes.to_bytes(4)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0, settings))
    return connection


def request(stream_id: int, method: str) -> bytes:
    """A whole call to a method of MonitorService with an empty request."""
    headers = http2.encode_headers(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/neurontools.v1.MonitorService/{method}".encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    return frame(_HEADERS, _END_HEADERS, stream_id, headers) + frame(_DATA, _END_STREAM, stream_id, _EMPTY_MESSAGE)


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _send(connection: socket.socket, data: bytes) -> None:
    """Sends all of it and reads what comes meanwhile, so that the daemon is never the one that waits."""
    connection.setblocking(False)
    while data and not _is_over():
        readable, writable, _ = select.select([connection], [connection], [], 0.1)
        with contextlib.suppress(BlockingIOError):
            if readable and not connection.recv(2**18):
                raise ConnectionError("the daemon closed the connection")
            if writable:
                data = data[connection.send(data) :]


def _repeat(path: str, data_of: Callable[[int], bytes]) -> None:
    """Sends this data for one stream after the other, as fast as it is taken."""
    connection, stream_id = opened(path), 1
    while not _is_over():
        data = b"".join(data_of(stream_id + 2 * number) for number in range(_AT_ONCE))
        stream_id += 2 * _AT_ONCE
        try:
            _send(connection, data)
        except OSError:
            connection.close()
            connection, stream_id = opened(path), 1


def resets(path: str) -> None:
    """Calls that are cancelled as soon as they are made."""

    def cancelled(stream_id: int) -> bytes:
        return request(stream_id, "GetSnapshot") + frame(_RST_STREAM, 0, stream_id, _CANCEL)

    _repeat(path, cancelled)


def frames(path: str) -> None:
    """PING frames."""
    _repeat(path, lambda _: frame(_PING, 0, 0, bytes(8)))


def connects(path: str) -> None:
    """Connections that are closed as soon as they are made."""
    while not _is_over():
        with contextlib.suppress(OSError):
            opened(path).close()


def silent(path: str) -> None:
    """Connections that say nothing and stay: more than may be open, so that most of them are refused."""
    connections: deque[socket.socket] = deque()
    while not _is_over():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connections.append(connection)
        if len(connections) > 500:
            connections.popleft().close()
        with contextlib.suppress(OSError):
            connection.connect(path)


def _open_streams(path: str, method: str, streams: int, window_bytes: int) -> list[socket.socket]:
    connections = []
    for _ in range(40):
        with contextlib.suppress(OSError):
            connection = opened(path, window_bytes)
            connections.append(connection)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(b"".join(request(2 * number + 1, method) for number in range(streams)))
    return connections


def stalled(path: str) -> list[socket.socket]:
    """2,000 history readers that never read."""
    return _open_streams(path, "ListHistory", 50, 65535)


def windows(path: str) -> list[socket.socket]:
    """18,000 calls whose answers have no room to be sent."""
    return _open_streams(path, "GetSnapshot", 450, 0)


def slots(path: str) -> list[socket.socket]:
    """As many connections to the attach socket as there can be."""
    connections = []
    with contextlib.suppress(OSError):
        for _ in range(4000):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(5)
            connections.append(connection)
            connection.connect(f"{path}.attach")
            connection.recv(512)
    return connections


_GOING_ON = {attack.__name__: attack for attack in (resets, frames, connects, silent)}
_HOLDING = {attack.__name__: attack for attack in (stalled, windows, slots)}
ATTACKS = (*_GOING_ON, *_HOLDING)


def main() -> None:
    path, name = sys.argv[1:]
    connections = _HOLDING[name](path) if name in _HOLDING else []
    print("begun", flush=True)
    if name in _GOING_ON:
        _GOING_ON[name](path)
    sys.stdin.read()
    print("ended", len(connections), "connections were held", flush=True)


if __name__ == "__main__":
    main()
