"""Proxies the API socket: identifies each client by its peer credentials and applies its limits.

grpcio can neither identify a peer nor limit its use. So grpcio listens on a socket that only this process can reach,
and the proxy relays the bytes of each client.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from neurond.peers.limits import LimitReached, Peer, PeerCredentials, PeerLimiter, ResourceKind, read_peer_credentials
from neurontools.net.acceptor import Acceptor
from neurontools.rpc.http2 import ENHANCE_YOUR_CALM, MAX_STREAM_ID, send_goaway

CONNECTION_WORK = 1.0
# Least time between two searches for closed clients, so that a flood of connections can't make searching expensive.
_CHECK_EVERY_SECONDS = 2e-3


class ConnectionProxy:
    """Accepts clients and relays them to a server on another Unix socket."""

    def __init__(self, peers: PeerLimiter) -> None:
        self._peers = peers
        self.server = ProxiedServer[PeerCredentials](peers)
        self._goaway = GoawaySender()
        self._accepting: Acceptor | None = None
        self._delayed: dict[socket.socket, tuple[asyncio.TimerHandle, PeerCredentials]] = {}
        self._checked_seconds: dict[int, float] = {}  # time of the last search for closed clients, by UID

    def open(self, listener: socket.socket, inner_path: str) -> None:
        """Accepts clients on a listening socket and takes ownership of it. The server listens on `inner_path`."""
        self.server.open(inner_path)
        self._accepting = Acceptor(listener, self._accept, name="the API", refuse=_refuse)

    def close(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        for connection, (waiting, _) in self._delayed.items():
            waiting.cancel()
            connection.close()
        self._delayed.clear()
        self.server.close()
        self._goaway.close()

    def _accept(self, connection: socket.socket, _address: object) -> None:
        try:
            peer = read_peer_credentials(connection)
        except OSError:
            connection.close()
            return
        wait_seconds = self._peers.spend(peer, CONNECTION_WORK)
        try:
            self._count_connection(peer)
        except LimitReached as limit:
            self._goaway.refuse(connection, str(limit))
            return
        if wait_seconds > 0:
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(wait_seconds, self._connect_delayed, connection, peer)
            self._delayed[connection] = waiting, peer
        else:
            self._connect(connection, peer)

    def _count_connection(self, peer: PeerCredentials) -> None:
        """Counts a connection. If a limit is reached, first closes the user's connections whose clients hung up."""
        try:
            self._peers.take(peer, ResourceKind.CONNECTION)
        except LimitReached:
            if not self._close_abandoned(peer.uid):
                raise
            self._peers.take(peer, ResourceKind.CONNECTION)

    def _close_abandoned(self, uid: int) -> int:
        """Closes those of a user's connections whose clients have hung up. Returns how many it closed."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds - self._checked_seconds.get(uid, 0.0) < _CHECK_EVERY_SECONDS:
            return 0
        self._checked_seconds[uid] = now_seconds
        relays = [relay for relay, peer in self.server.relays() if peer.uid == uid]
        waiting = [connection for connection, (_, peer) in self._delayed.items() if peer.uid == uid]
        gone = closed_by_peer([*(relay.client for relay in relays), *waiting])
        for relay in relays:
            if relay.client in gone:
                relay.close()
        for connection in waiting:
            if connection in gone:
                handle, peer = self._delayed.pop(connection)
                handle.cancel()
                connection.close()
                self._peers.release(peer, ResourceKind.CONNECTION)
        return len(gone)

    def _connect_delayed(self, connection: socket.socket, peer: PeerCredentials) -> None:
        del self._delayed[connection]
        if is_closed_by_peer(connection):
            connection.close()
            self._peers.release(peer, ResourceKind.CONNECTION)
        else:
            self._connect(connection, peer)

    def _connect(self, client: socket.socket, peer: PeerCredentials) -> None:
        try:
            self.server.connect(client, peer, Relay)
        except OSError as error:
            self._peers.release(peer, ResourceKind.CONNECTION)
            self._goaway.refuse(client, f"the daemon can take no more connections now: {error.strerror}")


_MOST_CLOSING = 32
_TIME_TO_READ_SECONDS = 1.0
# GOAWAY names the highest possible stream ID: grpcio would retry calls with higher IDs immediately, forever.
_refuse = partial(send_goaway, last_stream_id=MAX_STREAM_ID, error_code=ENHANCE_YOUR_CALM)


class GoawaySender:
    """Sends GOAWAY to refused clients and closes them a second later. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._refused: deque[tuple[float, socket.socket]] = deque()  # refused connections, and when to close each
        self._closing: asyncio.TimerHandle | None = None

    def refuse(self, connection: socket.socket, reason: str) -> None:
        _refuse(connection, reason)
        self.close_later(connection)

    def close_later(self, connection: socket.socket) -> None:
        """Closes a connection after a second. If closed at once, clients report a write error instead of the reason."""
        loop = asyncio.get_running_loop()
        if len(self._refused) == _MOST_CLOSING:
            self._refused.popleft()[1].close()
        self._refused.append((loop.time() + _TIME_TO_READ_SECONDS, connection))
        if self._closing is None:
            self._closing = loop.call_later(_TIME_TO_READ_SECONDS, self._close_due, loop)

    def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        for _, connection in self._refused:
            connection.close()
        self._refused.clear()

    def _close_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes the due connections. One timer serves all connections, so a flood of refusals needs only one."""
        while self._refused and self._refused[0][0] <= loop.time():
            self._refused.popleft()[1].close()
        self._closing = loop.call_at(self._refused[0][0], self._close_due, loop) if self._refused else None


# The buffer for reads from clients is small, so that one read can't exceed the client's rate limit by much.
_receive_buffer = memoryview(bytearray(2**13))
_answered = memoryview(bytearray(2**16))


class Relay:
    """Relays bytes between a client and the server until one end closes.

    `spend` gets the cost of the client's bytes, and returns for how many seconds to pause reading from the client.
    `on_end` is called once, after both ends are closed. Each direction buffers the data of at most one read.
    """

    _piece: ClassVar = _receive_buffer  # the buffer for reads from the client
    _would_block: ClassVar[tuple[type[OSError], ...]] = (BlockingIOError, InterruptedError)

    __slots__ = (
        "_is_open",
        "_loop",
        "_on_end",
        "_pause",
        "_server",
        "_spend",
        "_to_client",
        "_to_server",
        "_weight",
        "client",
    )

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        spend: Callable[[float], float],
        on_end: Callable[[Relay], None],
    ) -> None:
        self.client = client
        self._server = server
        self._spend = spend
        self._on_end = on_end
        self._weight = RequestCost()
        self._to_server = b""  # data that waits to be sent to the server
        self._to_client = b""  # data that waits to be sent to the client
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        # A large send buffer would hold old data for a slow client.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(_answered))
        self._loop.add_reader(client.fileno(), self._read_client)
        self._loop.add_reader(server.fileno(), self._read_server)

    def close(self) -> None:
        """Closes both sockets and calls `on_end`."""
        if not self._is_open:
            return
        self._is_open = False
        if self._pause is not None:
            self._pause.cancel()
        for end in (self.client, self._server):
            self._loop.remove_reader(end.fileno())
            self._loop.remove_writer(end.fileno())
            end.close()
        self._on_end(self)

    def _read_client(self) -> None:
        data = self._receive(self.client, self._piece)
        if not data:
            return
        wait_seconds = self._spend(self._weight.cost_of(data))
        self._to_server = self._send(self._server, data)
        if not self._is_open:
            return
        if self._to_server:
            self._loop.add_writer(self._server.fileno(), self._write_server)
        if wait_seconds > 0:
            self._pause = self._loop.call_later(wait_seconds, self._end_pause)
        if self._to_server or wait_seconds > 0:
            self._loop.remove_reader(self.client.fileno())

    def _end_pause(self) -> None:
        self._pause = None
        if is_closed_by_peer(self.client):  # the client is gone, so drop its pending requests
            self.close()
        else:
            self._read_client_again()

    def _read_client_again(self) -> None:
        if self._pause is None and not self._to_server:
            self._loop.add_reader(self.client.fileno(), self._read_client)

    def _write_server(self) -> None:
        self._to_server = self._send(self._server, memoryview(self._to_server))
        if self._is_open and not self._to_server:
            self._loop.remove_writer(self._server.fileno())
            self._read_client_again()

    def _read_server(self) -> None:
        data = self._receive(self._server, _answered)
        if not data:
            return
        self._to_client = self._send(self.client, data)
        if self._to_client:
            self._loop.remove_reader(self._server.fileno())
            self._loop.add_writer(self.client.fileno(), self._write_client)

    def _write_client(self) -> None:
        self._to_client = self._send(self.client, memoryview(self._to_client))
        if self._is_open and not self._to_client:
            self._loop.remove_writer(self.client.fileno())
            self._loop.add_reader(self._server.fileno(), self._read_server)

    def _receive(self, end: socket.socket, piece: memoryview) -> memoryview:
        """Reads into `piece` and returns the data, empty if there is none yet. Closes the relay at end of file."""
        try:
            size = end.recv_into(piece)
        except self._would_block:
            return piece[:0]
        except OSError:
            size = 0
        if not size:
            self.close()
        return piece[:size]

    def _send(self, end: socket.socket, data: memoryview) -> bytes:
        """Sends as much data as the socket takes, and returns the unsent data. Closes the relay on an error."""
        try:
            return bytes(data[end.send(data) :])
        except self._would_block:
            return bytes(data)
        except OSError:
            self.close()
            return b""


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Whether the peer has closed its end, even if unread data is left."""
    return bool(closed_by_peer([connection]))


def closed_by_peer(connections: Sequence[socket.socket]) -> set[socket.socket]:
    """Returns those of the connections whose peers have closed them. Uses a single call of poll(2)."""
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.POLLRDHUP)
    return {by_number[number] for number, _ in poll.poll(0)}


P = TypeVar("P", bound=Peer)
R = TypeVar("R", bound=Relay)


class ProxiedServer(Generic[P]):
    """The inner gRPC server on a Unix socket, and the relays to it. Belongs to the event loop's thread."""

    def __init__(self, peers: PeerLimiter) -> None:
        self._peers = peers
        self._descriptor = -1
        self._relays: dict[Relay, str] = {}
        self._names: dict[str, P] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, path: str) -> None:
        """Opens the server's socket and removes its file, so that no other process can connect."""
        self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        Path(path).unlink()

    def find_peer(self, peer_name: str) -> P | None:
        """Returns the client that has this peer name in grpcio; None if its connection has ended."""
        return self._names.get(peer_name)

    def relays(self) -> list[tuple[Relay, P]]:
        return [(relay, self._names[name]) for relay, name in self._relays.items()]

    def connect(self, client: socket.socket, peer: P, kind: type[R]) -> R:
        """Connects to the server and relays a client to it. The client's limits count the connection until it ends.

        Raises OSError if connecting to the server fails. The client's socket then stays open and counted.
        """
        server: socket.socket | None = None
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            server.bind("")  # the kernel assigns a unique name (unix(7), autobind)
            server.connect(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            if server is not None:
                server.close()
            raise
        name = f"unix-abstract:{server.getsockname()[1:].decode('ascii')}"
        self._names[name] = peer
        relay = kind(client, server, partial(self._peers.spend, peer), self._ended)
        self._relays[relay] = name
        return relay

    def close(self) -> None:
        for relay in list(self._relays):
            relay.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self, relay: Relay) -> None:
        peer = self._names.pop(self._relays.pop(relay))
        self._peers.release(peer, ResourceKind.CONNECTION)


_PREFACE_BYTES = 24
_HEADER_BYTES = 9
_HEADERS = 1
CALL_COST = 1.0
FRAME_COST = 0.05
BYTE_COST = 1.0 / 2**8  # parsing a report takes 1 µs per byte


class RequestCost:
    """Computes the cost of a client's bytes from HTTP/2 frames (RFC 9113, section 4.1).

    A HEADERS frame begins a call and costs 1, even if the call is cancelled. Other frames and bytes cost little.
    """

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._header = b""
        self._skip = _PREFACE_BYTES

    def cost_of(self, data: memoryview) -> float:
        size = len(data)
        work = size * BYTE_COST
        position = self._skip
        while position < size:
            header = self._header + data[position : position + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                self._header = header
                position = size
                break
            position += _HEADER_BYTES - len(self._header) + int.from_bytes(header[:3])
            self._header = b""
            work += CALL_COST if header[3] == _HEADERS else FRAME_COST
        self._skip = position - size
        return work
