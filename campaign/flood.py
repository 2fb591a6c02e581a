"""`python -m campaign.flood KIND PATH SECONDS [GID UID]`: a hostile peer, in a process of its own.

Kinds are the functions of `KINDS`. PATH is a Unix socket, or HOST:PORT of this host. It prints its number of requests.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable

from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.call import RpcError, call
from neurontools.rpc.report_limits import MOST_MODELS, MOST_SUBGRAPHS

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)
_HEADERS, _RST_STREAM, _END_HEADERS, _END_STREAM = 1, 3, 4, 1
_MOST_CONNECTIONS = 1000
_OWN_ADDRESS = "127.0.0.2"  # the flood comes from another address than the scraper


def _connected(place: str) -> socket.socket:
    if place.startswith("/"):
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(2)
        made.connect(place)
    else:
        host, _, port = place.rpartition(":")
        made = socket.create_connection((host, int(port)), 2, (_OWN_ADDRESS, 0))
    return made


def _literal(name: bytes, value: bytes) -> bytes:
    """Encodes a header field in HPACK without a table (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _call_headers(method: bytes) -> bytes:
    return b"".join(
        _literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/neurontools.v1.MonitorService/" + method),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _held(place: str, until: float, say: Callable[[socket.socket], int]) -> int:
    """Opens connections and keeps them open. Calls `say` with each, and returns the sum of its results."""
    held: list[socket.socket] = []
    count = 0
    while time.monotonic() < until:
        try:
            made = _connected(place)
            held.append(made)
            count += say(made)
        except OSError:
            time.sleep(0.02)
        if len(held) > _MOST_CONNECTIONS:
            held.pop(0).close()
    return count


def silent(place: str, until: float) -> int:
    """Opens connections and sends nothing."""
    return _held(place, until, lambda _: 1)


def half(place: str, until: float) -> int:
    """Sends HTTP/1 requests whose headers never end."""

    def say(made: socket.socket) -> int:
        made.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-")
        return 1

    return _held(place, until, say)


def resets(place: str, until: float) -> int:
    """Makes calls and cancels each immediately."""
    count = 0
    while time.monotonic() < until:
        try:
            made = _connected(place)
            made.sendall(_PREFACE)
            headers, stream = _call_headers(b"GetSnapshot"), 1
            while time.monotonic() < until:
                batch = b""
                for _ in range(50):
                    batch += _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, headers)
                    batch += _frame(_RST_STREAM, 0, stream, struct.pack(">I", 8))
                    stream += 2
                made.sendall(batch)
                count += 50
        except OSError:
            time.sleep(0.02)
    return count


def stalled(place: str, until: float) -> int:
    """Makes calls with large replies and does not read them."""
    headers = _call_headers(b"WatchSnapshots")
    streams = range(1, 200, 2)

    def say(made: socket.socket) -> int:
        made.sendall(_PREFACE)
        for stream in streams:
            made.sendall(_frame(_HEADERS, _END_HEADERS, stream, headers) + _frame(0, 1, stream, b"\0" * 5))
        return len(streams)

    return _held(place, until, say)


def garbage(place: str, until: float) -> int:
    """Sends random bytes, on every second connection after a valid HTTP/2 preface."""
    count = 0
    chance = random.Random(count)
    while time.monotonic() < until:
        try:
            with _connected(place) as made:
                made.sendall((_PREFACE if count % 2 else b"") + chance.randbytes(chance.randrange(1, 5000)))
                made.recv(100)
        except OSError:
            pass
        count += 1
    return count


def reports(place: str, until: float) -> int:
    """Attaches, then sends the largest reports that are allowed, as fast as the daemon answers."""
    service = "/neurontools.v1.RuntimeService"
    parts = MOST_SUBGRAPHS // MOST_MODELS
    count = 0
    with _connected(f"{place}.attach") as attached:
        token = attached.recv(512).decode().strip()
        attach = pb.AttachRequest(token=token, core_count=1)
        call(place, f"{service}/Attach", attach.SerializeToString(), timeout_seconds=60)
        request = pb.ReportRequest(token=token)
        for number in range(MOST_MODELS):
            model = request.report.models.add(model_id=number, name=f"model {number}", uuid=f"{number:032x}")
            for index in range(parts):
                model.subgraphs.add(index=index)
        while time.monotonic() < until:
            request.report.measured_at_seconds = time.monotonic()
            try:
                call(place, f"{service}/Report", request.SerializeToString(), timeout_seconds=60)
            except RpcError:
                time.sleep(0.02)
            count += 1
    return count


KINDS: dict[str, Callable[[str, float], int]] = {
    kind.__name__: kind for kind in (silent, half, resets, stalled, garbage, reports)
}


def main() -> int:
    """Floods, and prints the number of requests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * _MOST_CONNECTIONS)), hard))
    kind, place, seconds, *user = sys.argv[1:]
    if user:  # after the imports: the other user may not be able to read the interpreter's directory
        group_id, user_id = map(int, user)
        os.setgroups([])
        os.setgid(group_id)
        os.setuid(user_id)
    print(KINDS[kind](place, time.monotonic() + float(seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
