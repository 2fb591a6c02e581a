"""The door of the API socket: it knows by the kernel who comes in, and lets nobody in for more than their share.

grpcio can't tell who a peer is, nor hold one back. So it listens on a socket that only this process can reach, and the
gate passes the bytes of each client on to it. Each of its own connections has a name, by which the server tells
whose call it serves.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from functools import partial
from pathlib import Path

from neurond.peers.credentials import Credentials, credentials
from neurond.peers.limits import Kind
from neurond.peers.peers import AtLimit, Peers
from neurond.peers.relay import Relay, is_gone, who_are_gone
from neurontools.sockets.acceptor import Acceptor

CONNECTION_WORK = 1.0
_TOLD_AT_ONCE = 32
_LOOK_EVERY_SECONDS = 2e-3  # for who has gone: a flood that is refused may not make it a work of its own
_TIME_TO_READ_SECONDS = 1.0
# HTTP/2 frames (RFC 9113, section 6): empty SETTINGS, and the head of GOAWAY.
_SETTINGS_FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_GOAWAY = 7
_ENHANCE_YOUR_CALM = 11


class Gate:
    """Lets clients in to a server that listens on another Unix socket."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._inner = -1
        self._accepting: Acceptor | None = None
        self._relays: dict[Relay, str] = {}
        self._names: dict[str, Credentials] = {}
        self._waiting: dict[socket.socket, tuple[asyncio.TimerHandle, Credentials]] = {}
        self._looked_seconds: dict[int, float] = {}  # when, by user
        self._told: deque[tuple[float, socket.socket]] = deque()  # those that are refused, and when they are closed
        self._closing: asyncio.TimerHandle | None = None

    def open(self, listener: socket.socket, inner_path: str) -> None:
        """Lets in who connects to a listening socket, which belongs to this object from here on.

        The server listens on `inner_path`, which nobody finds any more afterwards: it can be reached by a descriptor of
        this process alone.
        """
        self._inner = os.open(inner_path, os.O_PATH | os.O_CLOEXEC)
        Path(inner_path).unlink()
        self._accepting = Acceptor(listener, self._take, name="the API", refuse=_say)

    def who(self, peer_name: str) -> Credentials | None:
        """Whose call it is, by what grpcio calls the peer; None when the connection has ended."""
        return self._names.get(peer_name)

    def close(self) -> None:
        """Lets nobody in any more and ends all connections."""
        if self._accepting is not None:
            self._accepting.close()
        for connection, (waiting, _) in self._waiting.items():
            waiting.cancel()
            connection.close()
        self._waiting.clear()
        for relay in list(self._relays):
            relay.close()
        if self._closing is not None:
            self._closing.cancel()
        for _, connection in self._told:
            connection.close()
        self._told.clear()
        if self._inner >= 0:
            os.close(self._inner)
            self._inner = -1

    def _take(self, connection: socket.socket, _address: object) -> None:
        try:
            who = credentials(connection)
        except OSError:
            connection.close()
            return
        wait_seconds = self._peers.spend(who, CONNECTION_WORK)
        try:
            self._take_place(who)
        except AtLimit as limit:
            self._refuse(connection, str(limit))
            return
        if wait_seconds > 0:
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(wait_seconds, self._let_in_late, connection, who)
            self._waiting[connection] = waiting, who
        else:
            self._let_in(connection, who)

    def _take_place(self, who: Credentials) -> None:
        """Counts one more connection, if need be in the place of one whose client has gone."""
        try:
            self._peers.take(who, Kind.CONNECTION)
        except AtLimit:
            if not self._close_left(who.uid):
                raise
            self._peers.take(who, Kind.CONNECTION)

    def _close_left(self, uid: int) -> int:
        """Closes the connections of a user whose clients have gone, which nobody has noticed yet; how many."""
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds - self._looked_seconds.get(uid, 0.0) < _LOOK_EVERY_SECONDS:
            return 0
        self._looked_seconds[uid] = now_seconds
        relays = [relay for relay, name in self._relays.items() if self._names[name].uid == uid]
        waiting = [connection for connection, (_, who) in self._waiting.items() if who.uid == uid]
        gone = who_are_gone([*(relay.client for relay in relays), *waiting])
        for relay in relays:
            if relay.client in gone:
                relay.close()
        for connection in waiting:
            if connection in gone:
                handle, who = self._waiting.pop(connection)
                handle.cancel()
                connection.close()
                self._peers.give_back(who, Kind.CONNECTION)
        return len(gone)

    def _let_in_late(self, connection: socket.socket, who: Credentials) -> None:
        del self._waiting[connection]
        if is_gone(connection):
            connection.close()
            self._peers.give_back(who, Kind.CONNECTION)
        else:
            self._let_in(connection, who)

    def _let_in(self, client: socket.socket, who: Credentials) -> None:
        server: socket.socket | None = None
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            server.bind("")  # the kernel gives it a name that nobody else has (unix(7), autobind)
            server.connect(f"/proc/self/fd/{self._inner}")
        except OSError as error:
            if server is not None:
                server.close()
            self._peers.give_back(who, Kind.CONNECTION)
            self._refuse(client, f"the daemon can take no more connections now: {error.strerror}")
            return
        name = f"unix-abstract:{server.getsockname()[1:].decode('ascii')}"
        self._names[name] = who
        self._relays[Relay(client, server, partial(self._peers.spend, who), self._ended)] = name

    def _ended(self, relay: Relay) -> None:
        who = self._names.pop(self._relays.pop(relay))
        self._peers.give_back(who, Kind.CONNECTION)

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        """Says why, and gives the client the time to read it: what it writes to a closed socket would be its error."""
        loop = asyncio.get_running_loop()
        _say(connection, reason)
        if len(self._told) == _TOLD_AT_ONCE:
            self._told.popleft()[1].close()
        self._told.append((loop.time() + _TIME_TO_READ_SECONDS, connection))
        if self._closing is None:
            self._closing = loop.call_later(_TIME_TO_READ_SECONDS, self._close_told, loop)

    def _close_told(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: a flood that is refused leaves no timer for each of its connections."""
        while self._told and self._told[0][0] <= loop.time():
            self._told.popleft()[1].close()
        self._closing = loop.call_at(self._told[0][0], self._close_told, loop) if self._told else None


def _say(connection: socket.socket, reason: str) -> None:
    """Tells an HTTP/2 client why it is not let in."""
    last_stream_and_error = bytes(4) + _ENHANCE_YOUR_CALM.to_bytes(4)
    payload = last_stream_and_error + reason.encode()
    goaway = len(payload).to_bytes(3) + bytes((_GOAWAY, 0)) + bytes(4) + payload
    try:
        connection.send(_SETTINGS_FRAME + goaway)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # it is gone already
        return
