"""A peer that does its worst to a daemon: hostile_peer.py SOCKET ATTACK [SECONDS].

Says "begun" when the attack is under way, goes on until its standard input closes or the seconds are over, and then
says what it got done, as one line of JSON. Knows HTTP/2 by its bytes (RFC 9113), so that it can do what no client does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable

from neurontools.rpc import hpack

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
    headers = hpack.encode(
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


def _sent(connection: socket.socket, data: bytes, until: Callable[[], bool]) -> bool:
    """Sends all of it and reads what comes meanwhile, so that the daemon is never the one that waits."""
    connection.setblocking(False)
    while data:
        if until():
            return False
        readable, writable, _ = select.select([connection], [connection], [], 0.1)
        with contextlib.suppress(BlockingIOError):
            if readable and not connection.recv(2**18):
                raise ConnectionError("the daemon closed the connection")
            if writable:
                data = data[connection.send(data) :]
    return True


def _repeated(path: str, until: Callable[[], bool], data_of: Callable[[int], bytes]) -> int:
    """Sends this data for one stream after the other, as fast as it is taken; how often."""
    done = 0
    connection, stream_id = opened(path), 1
    while not until():
        data = b"".join(data_of(stream_id + 2 * number) for number in range(_AT_ONCE))
        stream_id += 2 * _AT_ONCE
        try:
            done += _AT_ONCE * _sent(connection, data, until)
        except OSError:
            connection.close()
            connection, stream_id = opened(path), 1
    return done


def resets(path: str, until: Callable[[], bool]) -> int:
    """Calls that are cancelled as soon as they are made."""

    def cancelled(stream_id: int) -> bytes:
        return request(stream_id, "GetSnapshot") + frame(_RST_STREAM, 0, stream_id, _CANCEL)

    return _repeated(path, until, cancelled)


def frames(path: str, until: Callable[[], bool]) -> int:
    """PING frames."""
    return _repeated(path, until, lambda _: frame(_PING, 0, 0, bytes(8)))


def connects(path: str, until: Callable[[], bool]) -> int:
    """Connections that are closed as soon as they are made."""
    done = 0
    while not until():
        with contextlib.suppress(OSError):
            opened(path).close()
            done += 1
    return done


def silent(path: str, until: Callable[[], bool]) -> int:
    """Connections that say nothing and stay: more than may be open, so that most of them are refused."""
    kept: deque[socket.socket] = deque()
    done = 0
    while not until():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        kept.append(connection)
        if len(kept) > 500:
            kept.popleft().close()
        with contextlib.suppress(OSError):
            connection.connect(path)
            done += 1
    return done


def _held(path: str, method: str, streams: int, connections: int, window_bytes: int) -> list[socket.socket]:
    kept = []
    for _ in range(connections):
        with contextlib.suppress(OSError):
            connection = opened(path, window_bytes)
            kept.append(connection)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(b"".join(request(2 * number + 1, method) for number in range(streams)))
    return kept


def stalled(path: str, until: Callable[[], bool]) -> int:
    """2,000 readers of the past that never read."""
    kept = _held(path, "ListHistory", 50, 40, 65535)
    _wait(until)
    return len(kept)


def windows(path: str, until: Callable[[], bool]) -> int:
    """18,000 calls whose answers have no room to be sent."""
    kept = _held(path, "GetSnapshot", 450, 40, 0)
    _wait(until)
    return len(kept)


def slots(path: str, until: Callable[[], bool]) -> int:
    """As many connections to the attach socket as there can be."""
    kept, taken = [], 0
    with contextlib.suppress(OSError):
        for _ in range(4000):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(5)
            kept.append(connection)
            connection.connect(f"{path}.attach")
            taken += not connection.recv(512).startswith(b"error")
    _wait(until)
    return taken


def _wait(until: Callable[[], bool]) -> None:
    _begun()
    while not until():
        time.sleep(0.01)


_has_begun = False


def _begun() -> None:
    global _has_begun
    if not _has_begun:
        _has_begun = True
        print("begun", flush=True)


ATTACKS = {attack.__name__: attack for attack in (resets, frames, connects, silent, stalled, windows, slots)}
_HELD = (stalled, windows, slots)


def main() -> None:
    path, attack = sys.argv[1], ATTACKS[sys.argv[2]]
    end = time.monotonic() + float(sys.argv[3]) if sys.argv[3:] else float("inf")

    def until() -> bool:
        return time.monotonic() >= end or bool(select.select([sys.stdin], [], [], 0)[0] and not os.read(0, 1))

    if attack not in _HELD:
        _begun()
    print(json.dumps({"done": attack(path, until)}), flush=True)


if __name__ == "__main__":
    main()
