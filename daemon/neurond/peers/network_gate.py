"""The door of the API over TCP: TLS alone, and to those alone whose certificate has a name that is allowed.

grpcio tells the names of a certificate too, but takes any number of handshakes and holds nobody back. So it listens
behind this gate as behind that of the socket, and what is not let in reaches neither HTTP/2 nor Python's handlers. A
connection takes part in the limits of handshakes until its certificate was seen, then in those of its name and address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from neurond.peers.farewell import Farewell
from neurond.peers.inner_server import InnerServer
from neurond.peers.limits import Kind
from neurond.peers.network_peer import NetworkPeer
from neurond.peers.peers import AtLimit, Peers
from neurond.peers.tls_relay import TlsRelay
from neurontools.net.sockets.acceptor import Acceptor
from neurontools.net.sockets.neighbourhood import neighbourhood
from neurontools.net.sockets.places import Places
from neurontools.net.sockets.readiness import readable, writable
from neurontools.net.sockets.turnstile import Turnstile
from neurontools.net.tls.server import ServerTls
from neurontools.net.tls.subjects import Subjects, subject_names
from neurontools.util.terminal import excerpt

HANDSHAKES, HANDSHAKES_OF_AN_ADDRESS = 256, 64  # that are under way, or have not begun
HANDSHAKES_PER_SECOND, HANDSHAKES_AT_ONCE = 100.0, 100  # each costs this process a millisecond or two
HANDSHAKE_SECONDS = 10.0
_RENEW_SECONDS = 1.0
_DEAD_MILLISECONDS = 60_000  # without a sign of life of a host that should give one
_LONGEST_TEXT = 200


class Outcome(StrEnum):
    """What became of a connection; the values are those of a label."""

    ADMITTED = "admitted"
    NOT_ALLOWED = "not_allowed"  # a certificate that is right, without a name that is allowed
    NO_CERTIFICATE = "no_certificate"  # none, or one that is wrong
    NO_HANDSHAKE = "no_handshake"  # not TLS, another version of it, or the client broke off
    TIMED_OUT = "timed_out"
    CROWDED_OUT = "crowded_out"  # by those that came later
    AT_LIMIT = "at_limit"


class NetworkGate:
    """Lets readers in to a server that listens on a Unix socket. Belongs to the event loop's thread.

    `on_refused` is told the fields of what is to be kept of a refusal: who it was, and why.
    """

    def __init__(
        self, peers: Peers, tls: ServerTls, subjects: Subjects, on_refused: Callable[[Mapping[str, object]], None]
    ) -> None:
        self._peers = peers
        self._tls = tls
        self._subjects = subjects
        self._on_refused = on_refused
        self._server = InnerServer[NetworkPeer](peers)
        self._farewell = Farewell()
        self._acceptors: list[Acceptor] = []
        self._waiting = Places(HANDSHAKES, HANDSHAKES_OF_AN_ADDRESS)
        self._turnstile = Turnstile(HANDSHAKES_PER_SECOND, HANDSHAKES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_seconds = time.monotonic()
        self.outcomes: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))

    @property
    def open_count(self) -> int:
        """The connections that are let in."""
        return len(self._server)

    def open(self, listeners: list[socket.socket], inner_path: str) -> None:
        """Lets in who connects to these listening sockets, which belong to this object from here on."""
        self._server.open(inner_path)
        for listener in listeners:
            self._acceptors.append(Acceptor(listener, self._take, name="the API over TLS"))

    def who(self, peer_name: str) -> NetworkPeer | None:
        """Whose call it is, by what grpcio calls the peer; None when the connection has ended."""
        return self._server.who(peer_name)

    def renew(self) -> None:
        """Looks for certificates that have changed. Who was let in by other authorities has to come again."""
        self._looked_seconds = time.monotonic()
        authorities = self._tls.authorities
        if self._tls.renew() and self._tls.authorities != authorities:
            for relay, _ in self._server.relays():
                relay.close()

    def allow(self, subjects: Subjects) -> None:
        """Goes by these names from here on; connections of those that see less or nothing now end."""
        self._subjects = subjects
        for relay, who in self._server.relays():
            if subjects.known([who.name]) != (who.name, who.role):
                relay.close()

    def close(self) -> None:
        """Lets nobody in any more and ends all connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        for task in self._tasks:
            task.cancel()
        self._server.close()
        self._farewell.close()

    def _take(self, connection: socket.socket, address: Any) -> None:
        if time.monotonic() - self._looked_seconds >= _RENEW_SECONDS:
            self.renew()
        task: asyncio.Task[None] | None = None

        def make_room() -> None:
            if task is not None:
                task.cancel()

        place = self._waiting.enter(neighbourhood(address[0]), make_room)
        if place is None:  # it can't be: nobody's is busy here
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._let_in(connection, str(place.peer)))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            place.leave()
            if task.cancelled():
                connection.close()  # here too, for a task that was cancelled before it began
                self.outcomes[Outcome.CROWDED_OUT] += 1

        task.add_done_callback(ended)

    async def _let_in(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                secured = await self._secured(connection, address)
        except TimeoutError:
            self.outcomes[Outcome.TIMED_OUT] += 1
        except _Refused as refused:
            self.outcomes[Outcome.NO_CERTIFICATE] += 1
            self._on_refused({"address": address, "why": str(refused)})
        except OSError:  # that of TLS is one
            self.outcomes[Outcome.NO_HANDSHAKE] += 1
        else:
            self.outcomes[self._admit(secured, address)] += 1

    async def _secured(self, connection: socket.socket, address: str) -> ssl.SSLSocket:
        """The connection behind its handshake; OSError closes it."""
        with contextlib.ExitStack() as closing:
            closing.callback(connection.close)
            _watch_over(connection)
            await readable(connection)
            if not connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError
            await self._turnstile.turn(address)
            secured = self._tls.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            closing.callback(secured.close)
            try:
                await _shake_hands(secured)
            except ssl.SSLError as error:
                closing.pop_all()
                self._farewell.close_later(secured)  # it must have the time to read what TLS says of it
                why = getattr(error, "verify_message", "") or (error.reason or "").replace("_", " ").lower()
                if "CERTIFICATE" in (error.reason or ""):
                    raise _Refused(why) from None
                raise
            closing.pop_all()
            return secured

    def _admit(self, secured: ssl.SSLSocket, address: str) -> Outcome:
        """Lets a client in whose certificate has been verified, if that is to be."""
        certificate = secured.getpeercert() or {}
        names = subject_names(certificate)
        known = self._subjects.known(names)
        if known is None:
            told = excerpt(", ".join(names), _LONGEST_TEXT) or "it has none"
            self._on_refused({"address": address, "names": told, "why": "no name is allowed"})
            self._farewell.refuse(
                secured, f"no name of your certificate may read here ({told}); add it to tls.summary or tls.full"
            )
            return Outcome.NOT_ALLOWED
        who = NetworkPeer(address, *known)
        try:
            self._peers.take(who, Kind.CONNECTION)
        except AtLimit as limit:
            self._farewell.refuse(secured, str(limit))
            return Outcome.AT_LIMIT
        try:
            relay = self._server.connect(secured, who, TlsRelay)
        except OSError as error:
            self._peers.give_back(who, Kind.CONNECTION)
            self._farewell.refuse(secured, f"the daemon can take no more connections now: {error.strerror}")
            return Outcome.AT_LIMIT
        relay.end_after(ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time())
        return Outcome.ADMITTED


class _Refused(Exception):
    """A client that shows no certificate, or a wrong one; the text says what is wrong with it."""


async def _shake_hands(secured: ssl.SSLSocket) -> None:
    while True:
        try:
            secured.do_handshake()
            return
        except ssl.SSLWantReadError:
            await readable(secured)
        except ssl.SSLWantWriteError:
            await writable(secured)


def _watch_over(connection: socket.socket) -> None:
    """Has the kernel notice when the host at the other end is gone without a word, and send small pieces at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)
