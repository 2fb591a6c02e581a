"""The read-only gRPC API over TLS, for clients with an allowed certificate, and the proxy that terminates TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2_grpc

from neurond.access import allowed_subjects, server_tls
from neurond.actions import HourlyTokenBucket
from neurond.peers.connection_proxy import GoawaySender, ProxiedServer, Relay
from neurond.peers.limits import LimitReached, PeerLimiter, ResourceKind, network_limits
from neurond.service.monitor_service import MonitorService
from neurond.service.server import HealthService, OpenCalls, announce_health, monitor_handlers, new_server
from neurond.service.socket_files import SocketFiles, closed_umask
from neurond.settings import Settings
from neurontools.net.acceptor import (
    Acceptor,
    ConnectionLimiter,
    RateLimiter,
    client_key,
    listen_address,
    listeners,
    wait_ready,
)
from neurontools.net.tls import Role, ServerTls, Subjects, subject_names
from neurontools.rpc import socket_path
from neurontools.util.errors import EXIT_FAILURE, UserError
from neurontools.util.rate_limited_log import RateLimitedLogger
from neurontools.util.terminal import excerpt

_BACKLOG = 256
_MOST_REQUEST_BYTES = 2**16  # largest request; the requests of this read-only API are small
_IDLE_MILLISECONDS = 300_000  # a connection is closed after this time without a call
_REFUSALS_KEPT_PER_HOUR = 120

_log = logging.getLogger(__name__)
_limited_log = RateLimitedLogger(_log, logging.WARNING)

Keep = Callable[[str, float, Mapping[str, object]], None]
"""Takes an event, its Unix time and its fields."""


class NetworkApi:
    """Serves MonitorService and health over TLS. To be used in the event loop's thread only.

    Calls `keep` to record refused clients. Raises UserError when a file of the [tls] settings is wrong.
    """

    def __init__(self, settings: Settings, monitor: MonitorService, most_files: int, keep: Keep) -> None:
        tls = server_tls(settings, ("h2",))
        if tls is None or settings.listen is None:
            raise ValueError("there is no certificate, or no address")
        self._address = settings.listen
        self._keep = keep
        self._refusal_budget = HourlyTokenBucket(_REFUSALS_KEPT_PER_HOUR, time.monotonic())
        peers = PeerLimiter(network_limits(most_files), time.monotonic)
        self.proxy = TlsConnectionProxy(peers, tls, allowed_subjects(settings), self._on_refused)
        self._calls: OpenCalls[NetworkPeer] = OpenCalls(peers, self.proxy.server.find_peer)
        self._server = new_server(
            ("grpc.max_receive_message_length", _MOST_REQUEST_BYTES),
            ("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS),
        )
        handlers = grpc.method_handlers_generic_handler(
            "neurontools.v1.MonitorService", monitor_handlers(monitor, self._calls)
        )
        self._server.add_generic_rpc_handlers((handlers, _LocalOnlyServices()))
        self._health = HealthService(self._calls)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, files: SocketFiles) -> None:
        """Starts the gRPC server and listens on the configured address. Raises UserError when it can't listen."""
        host, port = listen_address(self._address)
        try:
            opened = await listeners(host, port, backlog=_BACKLOG)
        except OSError as error:
            raise UserError(
                f"--listen {self._address}: {error.strerror or error}; give another address", EXIT_FAILURE
            ) from None
        with closed_umask():
            self._server.add_insecure_port(socket_path.grpc_target(files.network_path))
            await self._server.start()
        bound = opened[0].getsockname()[1]
        self.proxy.open(opened, files.network_path)
        await announce_health(self._health, ("MonitorService",))
        shown = f"[{host}]" if host and ":" in host else host or "*"
        _log.info("the API over TLS on grpcs://%s:%d", shown, bound)

    async def close(self, patience_seconds: float) -> None:
        await self._calls.end(patience_seconds)
        self.proxy.close()
        await self._server.stop(patience_seconds)

    def _on_refused(self, refusal: Mapping[str, object]) -> None:
        """Logs and records a refused client, both at a limited rate."""
        _limited_log(
            "the API over TLS refused %s: %s",
            " ".join(str(refusal[key]) for key in refusal if key != "why"),
            refusal["why"],
        )
        if self._refusal_budget.try_take(time.monotonic()):
            self._keep("network_refused", time.time(), refusal)


class _LocalOnlyServices(grpc.GenericRpcHandler):
    """Refuses calls that only the Unix socket serves, with PERMISSION_DENIED instead of UNIMPLEMENTED."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns a handler that refuses calls of neurontools methods; None for other methods."""
        if not handler_call_details.method.startswith("/neurontools."):
            return None

        async def refuse(_request: bytes, context: Any) -> bytes:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this call is served only on the host's own socket")
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)


# Most handshakes in progress or waiting: of all clients together, and of one address.
HANDSHAKES, HANDSHAKES_OF_AN_ADDRESS = 256, 64
HANDSHAKES_PER_SECOND, HANDSHAKES_AT_ONCE = 100.0, 100  # limited: each handshake costs the daemon a millisecond or two
HANDSHAKE_SECONDS = 10.0
_RENEW_SECONDS = 1.0
_DEAD_MILLISECONDS = 60_000  # a client that acknowledges no data for this long is disconnected
_LONGEST_TEXT = 200


class ConnectionOutcome(StrEnum):
    """The outcome of one client's connection attempt. The values are label values of a metric."""

    ADMITTED = "admitted"
    NOT_ALLOWED = "not_allowed"  # the certificate is valid but has no allowed name
    NO_CERTIFICATE = "no_certificate"  # none, or an invalid one
    NO_HANDSHAKE = "no_handshake"  # no TLS, a wrong TLS version, or the client closed the connection
    TIMED_OUT = "timed_out"
    CROWDED_OUT = "crowded_out"  # the daemon closed it to make room for later connections
    AT_LIMIT = "at_limit"


class TlsConnectionProxy:
    """Accepts TLS clients and relays them to a server on a Unix socket. To be used in the event loop's thread only.

    grpcio can verify certificates too, but limits neither handshakes nor clients. A connection counts against the
    handshake limits until its certificate is verified, then against the limits of its name and address. Calls
    `on_refused` with the address of each client whose certificate is refused, and the reason.
    """

    def __init__(
        self,
        peers: PeerLimiter,
        tls: ServerTls,
        allowed_subjects: Subjects,
        on_refused: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._peers = peers
        self._tls = tls
        self._subjects = allowed_subjects
        self._on_refused = on_refused
        self.server = ProxiedServer[NetworkPeer](peers)
        self._goaway = GoawaySender()
        self._acceptors: list[Acceptor] = []
        self._handshakes = ConnectionLimiter(HANDSHAKES, HANDSHAKES_OF_AN_ADDRESS)
        self._rate_limiter = RateLimiter(HANDSHAKES_PER_SECOND, HANDSHAKES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked_seconds = time.monotonic()
        self.outcomes: Counter[ConnectionOutcome] = Counter(dict.fromkeys(ConnectionOutcome, 0))

    @property
    def open_count(self) -> int:
        return len(self.server)

    def open(self, listeners: list[socket.socket], inner_path: str) -> None:
        """Accepts clients on these listening sockets and takes ownership of them."""
        self.server.open(inner_path)
        for listener in listeners:
            self._acceptors.append(Acceptor(listener, self._accept, name="the API over TLS"))

    def renew(self) -> None:
        """Loads changed certificate files. When the client CA changed, all clients have to reconnect."""
        self._checked_seconds = time.monotonic()
        authorities = self._tls.authorities
        if self._tls.reload() and self._tls.authorities != authorities:
            for relay, _ in self.server.relays():
                relay.close()

    def allow(self, allowed_subjects: Subjects) -> None:
        """Applies new roles of certificate names, and closes the connections of clients whose role has changed."""
        self._subjects = allowed_subjects
        for relay, peer in self.server.relays():
            if allowed_subjects.widest_role([peer.name]) != (peer.name, peer.role):
                relay.close()

    def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        for task in self._tasks:
            task.cancel()
        self.server.close()
        self._goaway.close()

    def _accept(self, connection: socket.socket, address: Any) -> None:
        if time.monotonic() - self._checked_seconds >= _RENEW_SECONDS:
            self.renew()
        task: asyncio.Task[None] | None = None

        def make_room() -> None:
            if task is not None:
                task.cancel()

        place = self._handshakes.acquire(client_key(address[0]), make_room)
        if place is None:  # not expected: an older handshake can always be evicted
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._handshake_and_admit(connection, str(place.peer)))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            place.release()
            if task.cancelled():
                connection.close()  # a task that was cancelled before it started has not closed the connection
                self.outcomes[ConnectionOutcome.CROWDED_OUT] += 1

        task.add_done_callback(ended)

    async def _handshake_and_admit(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                secured = await self._wrap_tls(connection, address)
        except TimeoutError:
            self.outcomes[ConnectionOutcome.TIMED_OUT] += 1
        except _Refused as refused:
            self.outcomes[ConnectionOutcome.NO_CERTIFICATE] += 1
            self._on_refused({"address": address, "why": str(refused)})
        except OSError:  # includes TLS errors
            self.outcomes[ConnectionOutcome.NO_HANDSHAKE] += 1
        else:
            self.outcomes[self._admit(secured, address)] += 1

    async def _wrap_tls(self, connection: socket.socket, address: str) -> ssl.SSLSocket:
        """Performs the TLS handshake and returns the TLS connection. Closes the connection on OSError."""
        with contextlib.ExitStack() as closing:
            closing.callback(connection.close)
            _set_tcp_options(connection)
            await wait_ready(connection)
            if not connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError
            await self._rate_limiter.acquire(address)
            secured = self._tls.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            closing.callback(secured.close)
            try:
                await _shake_hands(secured)
            except ssl.SSLError as error:
                closing.pop_all()
                self._goaway.close_later(secured)  # leaves the client time to read the TLS alert
                reason = error.reason or ""
                if "CERTIFICATE" in reason:
                    cause = getattr(error, "verify_message", "") or reason.replace("_", " ").lower()
                    raise _Refused(cause) from None
                raise
            closing.pop_all()
            return secured

    def _admit(self, secured: ssl.SSLSocket, address: str) -> ConnectionOutcome:
        """Relays a client with a verified certificate if its name is allowed and no limit is reached."""
        certificate = secured.getpeercert() or {}
        names = subject_names(certificate)
        identity = self._subjects.widest_role(names)
        if identity is None:
            shown = excerpt(", ".join(names), _LONGEST_TEXT) or "it has none"
            self._on_refused({"address": address, "names": shown, "why": "no name is allowed"})
            self._goaway.refuse(
                secured, f"no name of your certificate may read here ({shown}); add it to tls.summary or tls.full"
            )
            return ConnectionOutcome.NOT_ALLOWED
        peer = NetworkPeer(address, *identity)
        try:
            self._peers.take(peer, ResourceKind.CONNECTION)
        except LimitReached as limit:
            self._goaway.refuse(secured, str(limit))
            return ConnectionOutcome.AT_LIMIT
        try:
            relay = self.server.connect(secured, peer, TlsRelay)
        except OSError as error:
            self._peers.release(peer, ResourceKind.CONNECTION)
            self._goaway.refuse(secured, f"the daemon can take no more connections now: {error.strerror}")
            return ConnectionOutcome.AT_LIMIT
        relay.end_after(ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time())
        return ConnectionOutcome.ADMITTED


class _Refused(Exception):
    """The client has no valid certificate; the message says why."""


async def _shake_hands(secured: ssl.SSLSocket) -> None:
    while True:
        try:
            secured.do_handshake()
            return
        except ssl.SSLWantReadError:
            await wait_ready(secured)
        except ssl.SSLWantWriteError:
            await wait_ready(secured, to_write=True)


def _set_tcp_options(connection: socket.socket) -> None:
    """Detects dead hosts with TCP keepalive, and disables Nagle's algorithm."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)


# A whole TLS record: the selector can't see data left in OpenSSL's buffer.
_receive_buffer = memoryview(bytearray(2**14))


class TlsRelay(Relay):
    """A relay whose client is an `ssl.SSLSocket` after its handshake."""

    _piece: ClassVar = _receive_buffer
    _would_block: ClassVar = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    __slots__ = ("_end",)

    def end_after(self, seconds: float) -> None:
        """Closes the relay after `seconds`. May be called only once."""
        self._end = self._loop.call_later(max(0.0, seconds), self.close)

    def close(self) -> None:
        """Sends the client a TLS close_notify and closes both connections of the relay."""
        if self._is_open:
            self._end.cancel()
        if self._is_open and isinstance(self.client, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self.client.unwrap()
        super().close()


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """A client over the network. Limits apply to its address and to its certificate name."""

    address: str
    name: str  # the certificate name that determines the role
    role: Role

    @property
    def accounts(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return ("address", self.address), ("subject", self.name)
