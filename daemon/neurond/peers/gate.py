"""The door of the API socket: it knows by the kernel who comes in, and lets nobody in for more than their share.

grpcio can't tell who a peer is, nor hold one back. So it listens on a socket that only this process can reach, and the
gate passes the bytes of each client on to it.
"""

from __future__ import annotations

import asyncio
import socket

from neurond.peers.credentials import Credentials, credentials
from neurond.peers.farewell import Farewell, say
from neurond.peers.inner_server import InnerServer
from neurond.peers.limits import Kind
from neurond.peers.peers import AtLimit, Peers
from neurond.peers.relay import Relay, is_gone, who_are_gone
from neurontools.net.sockets.acceptor import Acceptor

CONNECTION_WORK = 1.0
_LOOK_EVERY_SECONDS = 2e-3  # for who has gone: a flood that is refused may not make it a work of its own


class Gate:
    """Lets clients in to a server that listens on another Unix socket."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._server = InnerServer[Credentials](peers)
        self._farewell = Farewell()
        self._accepting: Acceptor | None = None
        self._waiting: dict[socket.socket, tuple[asyncio.TimerHandle, Credentials]] = {}
        self._looked_seconds: dict[int, float] = {}  # when, by user

    def open(self, listener: socket.socket, inner_path: str) -> None:
        """Lets in who connects to a listening socket, which belongs to this object from here on.

        The server listens on `inner_path`.
        """
        self._server.open(inner_path)
        self._accepting = Acceptor(listener, self._take, name="the API", refuse=say)

    def who(self, peer_name: str) -> Credentials | None:
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
            who = credentials(connection)
        except OSError:
            connection.close()
            return
        wait_seconds = self._peers.spend(who, CONNECTION_WORK)
        try:
            self._take_place(who)
        except AtLimit as limit:
            self._farewell.refuse(connection, str(limit))
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
        relays = [relay for relay, who in self._server.relays() if who.uid == uid]
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
        try:
            self._server.connect(client, who, Relay)
        except OSError as error:
            self._peers.give_back(who, Kind.CONNECTION)
            self._farewell.refuse(client, f"the daemon can take no more connections now: {error.strerror}")
