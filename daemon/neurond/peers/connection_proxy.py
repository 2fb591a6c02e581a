"""The door of the API socket: it knows by the kernel who comes in, and lets nobody in for more than their share.

grpcio can't tell who a peer is, nor hold one back. So it listens on a socket that only this process can reach, and the
gate passes the bytes of each client on to it.
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

CONNECTION_WORK = 1.0
_LOOK_EVERY_SECONDS = 2e-3  # for who has gone: a flood that is refused may not make it a work of its own


class ConnectionProxy:
    """Lets clients in to a server that listens on another Unix socket."""

    def __init__(self, peers: PeerLimiter) -> None:
        self._peers = peers
        self._server = ProxiedServer[PeerCredentials](peers)
        self._farewell = GoawaySender()
        self._accepting: Acceptor | None = None
        self._waiting: dict[socket.socket, tuple[asyncio.TimerHandle, PeerCredentials]] = {}
        self._looked_seconds: dict[int, float] = {}  # when, by user

    def open(self, listener: socket.socket, inner_path: str) -> None:
        """Lets in who connects to a listening socket, which belongs to this object from here on.

        The server listens on `inner_path`.
        """
        self._server.open(inner_path)
        self._accepting = Acceptor(listener, self._take, name="the API", refuse=send_goaway)

    def who(self, peer_name: str) -> PeerCredentials | None:
        """Whose call it is, by what grpcio calls the peer; None when the connection has ended."""
        return self._server.who(peer_name)

    def close(self) -> None:
        """Lets nobody in any more and ends all connections."""
        if self._accepting is not None:
            self._accepting.close()
        for connection, (waiting, _) in self._waiting.items():
            waiting.cancel()
            connection.close()
        self._waiting.clear()
        self._server.close()
        self._farewell.close()

    def _take(self, connection: socket.socket, _address: object) -> None:
        try:
            who = read_peer_credentials(connection)
        except OSError:
            connection.close()
            return
        wait_seconds = self._peers.spend(who, CONNECTION_WORK)
        try:
            self._take_place(who)
        except LimitReached as limit:
            self._farewell.refuse(connection, str(limit))
            return
        if wait_seconds > 0:
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(wait_seconds, self._let_in_late, connection, who)
            self._waiting[connection] = waiting, who
        else:
            self._let_in(connection, who)

    def _take_place(self, who: PeerCredentials) -> None:
        """Counts one more connection, if need be in the place of one whose client has gone."""
        try:
            self._peers.take(who, ResourceKind.CONNECTION)
        except LimitReached:
            if not self._close_left(who.uid):
                raise
            self._peers.take(who, ResourceKind.CONNECTION)

    def _close_left(self, uid: int) -> int:
        """Closes the connections of a user whose clients have gone, which nobody has noticed yet; how many."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds - self._looked_seconds.get(uid, 0.0) < _LOOK_EVERY_SECONDS:
            return 0
        self._looked_seconds[uid] = now_seconds
        relays = [relay for relay, who in self._server.relays() if who.uid == uid]
        waiting = [connection for connection, (_, who) in self._waiting.items() if who.uid == uid]
        gone = closed_by_peer([*(relay.client for relay in relays), *waiting])
        for relay in relays:
            if relay.client in gone:
                relay.close()
        for connection in waiting:
            if connection in gone:
                handle, who = self._waiting.pop(connection)
                handle.cancel()
                connection.close()
                self._peers.give_back(who, ResourceKind.CONNECTION)
        return len(gone)

    def _let_in_late(self, connection: socket.socket, who: PeerCredentials) -> None:
        del self._waiting[connection]
        if is_closed_by_peer(connection):
            connection.close()
            self._peers.give_back(who, ResourceKind.CONNECTION)
        else:
            self._let_in(connection, who)

    def _let_in(self, client: socket.socket, who: PeerCredentials) -> None:
        try:
            self._server.connect(client, who, Relay)
        except OSError as error:
            self._peers.give_back(who, ResourceKind.CONNECTION)
            self._farewell.refuse(client, f"the daemon can take no more connections now: {error.strerror}")


_TOLD_AT_ONCE = 32
_TIME_TO_READ_SECONDS = 1.0
# HTTP/2 frames (RFC 9113, section 6): empty SETTINGS, and the head of GOAWAY.
_SETTINGS_FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_GOAWAY = 7
_ENHANCE_YOUR_CALM = 11
_LAST_STREAM = 2**31 - 1


class GoawaySender:
    """Those that are refused, until they are closed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, socket.socket]] = deque()  # and when each is closed
        self._closing: asyncio.TimerHandle | None = None

    def refuse(self, connection: socket.socket, reason: str) -> None:
        """Says why, and closes later."""
        send_goaway(connection, reason)
        self.close_later(connection)

    def close_later(self, connection: socket.socket) -> None:
        """Closes a connection that was told why: what the client writes to a closed socket would be its error."""
        loop = asyncio.get_running_loop()
        if len(self._told) == _TOLD_AT_ONCE:
            self._told.popleft()[1].close()
        self._told.append((loop.time() + _TIME_TO_READ_SECONDS, connection))
        if self._closing is None:
            self._closing = loop.call_later(_TIME_TO_READ_SECONDS, self._close_told, loop)

    def close(self) -> None:
        """Closes all of them."""
        if self._closing is not None:
            self._closing.cancel()
        for _, connection in self._told:
            connection.close()
        self._told.clear()

    def _close_told(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: a flood that is refused leaves no timer for each of its connections."""
        while self._told and self._told[0][0] <= loop.time():
            self._told.popleft()[1].close()
        self._closing = loop.call_at(self._told[0][0], self._close_told, loop) if self._told else None


def send_goaway(connection: socket.socket, reason: str) -> None:
    """Tells an HTTP/2 client why it is not let in.

    Of a call that was certainly not looked at, grpcio would think no worse than to ask again, at once and without end.
    """
    last_stream_and_error = _LAST_STREAM.to_bytes(4) + _ENHANCE_YOUR_CALM.to_bytes(4)
    payload = last_stream_and_error + reason.encode()
    goaway = len(payload).to_bytes(3) + bytes((_GOAWAY, 0)) + bytes(4) + payload
    try:
        connection.send(_SETTINGS_FRAME + goaway)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # it is gone already
        return


# What a client sends is weighed a piece at a time, so that a flood can't run up a large debt with one of them.
_weighed = memoryview(bytearray(2**13))
_answered = memoryview(bytearray(2**16))


class Relay:
    """Passes bytes until an end closes. `spend` is told the work in what the client sent and returns the seconds that
    nothing more is read from it; `on_end` is called once, when both ends are closed.

    What an end doesn't take at once is kept, and no more is read for it: one piece at most waits in either direction.
    """

    _piece: ClassVar = _weighed  # what is read of a client at a time
    _not_now: ClassVar[tuple[type[OSError], ...]] = (BlockingIOError, InterruptedError)

    __slots__ = ("_client", "_down", "_is_open", "_loop", "_on_end", "_rest", "_server", "_spend", "_up", "_weight")

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        spend: Callable[[float], float],
        on_end: Callable[[Relay], None],
    ) -> None:
        self._client = client
        self._server = server
        self._spend = spend
        self._on_end = on_end
        self._weight = RequestCost()
        self._up = b""  # for the server
        self._down = b""  # for the client
        self._rest: asyncio.TimerHandle | None = None
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        # What waits in buffers for a slow reader is old when it reads it.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(_answered))
        self._loop.add_reader(client.fileno(), self._read_client)
        self._loop.add_reader(server.fileno(), self._read_server)

    def close(self) -> None:
        """Closes both ends."""
        if not self._is_open:
            return
        self._is_open = False
        if self._rest is not None:
            self._rest.cancel()
        for end in (self._client, self._server):
            self._loop.remove_reader(end.fileno())
            self._loop.remove_writer(end.fileno())
            end.close()
        self._on_end(self)

    @property
    def client(self) -> socket.socket:
        """The connection of the client."""
        return self._client

    def _read_client(self) -> None:
        data = self._received(self._client, self._piece)
        if not data:
            return
        wait_seconds = self._spend(self._weight.weigh(data))
        self._up = self._sent(self._server, data)
        if not self._is_open:
            return
        if self._up:
            self._loop.add_writer(self._server.fileno(), self._write_server)
        if wait_seconds > 0:
            self._rest = self._loop.call_later(wait_seconds, self._rested)
        if self._up or wait_seconds > 0:
            self._loop.remove_reader(self._client.fileno())

    def _rested(self) -> None:
        self._rest = None
        if is_closed_by_peer(self._client):  # what it asked for before it left is for nobody
            self.close()
        else:
            self._read_client_again()

    def _read_client_again(self) -> None:
        if self._rest is None and not self._up:
            self._loop.add_reader(self._client.fileno(), self._read_client)

    def _write_server(self) -> None:
        self._up = self._sent(self._server, memoryview(self._up))
        if self._is_open and not self._up:
            self._loop.remove_writer(self._server.fileno())
            self._read_client_again()

    def _read_server(self) -> None:
        data = self._received(self._server, _answered)
        if not data:
            return
        self._down = self._sent(self._client, data)
        if self._down:
            self._loop.remove_reader(self._server.fileno())
            self._loop.add_writer(self._client.fileno(), self._write_client)

    def _write_client(self) -> None:
        self._down = self._sent(self._client, memoryview(self._down))
        if self._is_open and not self._down:
            self._loop.remove_writer(self._client.fileno())
            self._loop.add_reader(self._server.fileno(), self._read_server)

    def _received(self, end: socket.socket, piece: memoryview) -> memoryview:
        """What an end has sent, in `piece`; empty where there is nothing now. An end that is closed closes both."""
        try:
            size = end.recv_into(piece)
        except self._not_now:
            return piece[:0]
        except OSError:
            size = 0
        if not size:
            self.close()
        return piece[:size]

    def _sent(self, end: socket.socket, data: memoryview) -> bytes:
        """Sends what an end takes and returns the rest; an end that is gone closes both."""
        try:
            return bytes(data[end.send(data) :])
        except self._not_now:
            return bytes(data)
        except OSError:
            self.close()
            return b""


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Whether the other end is closed, however much of what it sent hasn't been read."""
    return bool(closed_by_peer([connection]))


def closed_by_peer(connections: Sequence[socket.socket]) -> set[socket.socket]:
    """Those whose other end is closed, of connections that are open here; one question to the kernel."""
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.POLLRDHUP)
    return {by_number[number] for number, _ in poll.poll(0)}


P = TypeVar("P", bound=Peer)
R = TypeVar("R", bound=Relay)


class ProxiedServer(Generic[P]):
    """A server on a Unix socket, and the connections to it. Belongs to the event loop's thread."""

    def __init__(self, peers: PeerLimiter) -> None:
        self._peers = peers
        self._descriptor = -1
        self._relays: dict[Relay, str] = {}
        self._names: dict[str, P] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, path: str) -> None:
        """The server listens on this path, which nobody finds any more afterwards: a descriptor alone leads to it."""
        self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        Path(path).unlink()

    def who(self, peer_name: str) -> P | None:
        """Whose call it is, by what grpcio calls the peer; None when the connection has ended."""
        return self._names.get(peer_name)

    def relays(self) -> list[tuple[Relay, P]]:
        """The open connections, and whose each is."""
        return [(relay, self._names[name]) for relay, name in self._relays.items()]

    def connect(self, client: socket.socket, who: P, kind: type[R]) -> R:
        """Passes a client's bytes on from here on; its place among the connections is given back at the end.

        OSError when there can be no more connections; the client is still the caller's then, and so is its place.
        """
        server: socket.socket | None = None
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            server.bind("")  # the kernel gives it a name that nobody else has (unix(7), autobind)
            server.connect(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            if server is not None:
                server.close()
            raise
        name = f"unix-abstract:{server.getsockname()[1:].decode('ascii')}"
        self._names[name] = who
        relay = kind(client, server, partial(self._peers.spend, who), self._ended)
        self._relays[relay] = name
        return relay

    def close(self) -> None:
        """Ends all connections, and there will be no more."""
        for relay in list(self._relays):
            relay.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self, relay: Relay) -> None:
        who = self._names.pop(self._relays.pop(relay))
        self._peers.give_back(who, ResourceKind.CONNECTION)


_PREFACE_BYTES = 24
_HEADER_BYTES = 9
_HEADERS = 1
CALL_COST = 1.0
FRAME_COST = 0.05
BYTE_COST = 1.0 / 2**8  # to read a report takes a microsecond a byte


class RequestCost:
    """Weighs the bytes of one client as they come: one for each call it begins, little for every other frame and byte.

    A call that is cancelled as soon as it is made weighs as much as any other.
    """

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._header = b""
        self._skip = _PREFACE_BYTES

    def weigh(self, data: memoryview) -> float:
        """The work in the next bytes, in calls."""
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
