"""The API over the network: what only reads, over TLS, to those whose certificates are named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from neurond.access.certificates import server_tls, subjects
from neurond.actions.rate_limit import RateLimit
from neurond.peers.limits import network_limits
from neurond.peers.network_gate import NetworkGate
from neurond.peers.network_peer import NetworkPeer
from neurond.peers.peers import Peers
from neurond.service.calls import Calls
from neurond.service.handlers import bare_server, monitor_handlers
from neurond.service.monitor_service import MonitorService
from neurond.service.server import announce_health
from neurond.service.socket_files import SocketFiles, closed_umask
from neurond.service.standard_services import Health
from neurond.settings import Settings
from neurontools.net.sockets.listen_address import listen_address, listeners
from neurontools.rpc import socket_path
from neurontools.util.errors import EXIT_FAILURE, UserError
from neurontools.util.rate_limited_log import RateLimitedLogger

_BACKLOG = 256
_MOST_REQUEST_BYTES = 2**16  # of questions alone
_IDLE_MILLISECONDS = 300_000  # a connection without a call
_REFUSALS_KEPT_PER_HOUR = 120

_log = logging.getLogger(__name__)
_tell = RateLimitedLogger(_log, logging.WARNING)

Keep = Callable[[str, float, Mapping[str, object]], None]
"""Is given an event, when it was, and what is to be said of it."""


class NetworkApi:
    """MonitorService and health, without anything that changes the host or attaches to it.

    Belongs to the event loop's thread. UserError when a file of [tls] is wrong. `keep` notes who was refused.
    """

    def __init__(self, settings: Settings, monitor: MonitorService, most_files: int, keep: Keep) -> None:
        tls = server_tls(settings, ("h2",))
        if tls is None or settings.listen is None:
            raise ValueError("there is no certificate, or no address")
        self._address = settings.listen
        self._keep = keep
        self._kept = RateLimit(_REFUSALS_KEPT_PER_HOUR, time.monotonic())
        peers = Peers(network_limits(most_files), time.monotonic)
        self.gate = NetworkGate(peers, tls, subjects(settings), self._on_refused)
        self._calls: Calls[NetworkPeer] = Calls(peers, self.gate.who)
        self._server = bare_server(
            ("grpc.max_receive_message_length", _MOST_REQUEST_BYTES),
            ("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS),
        )
        handlers = grpc.method_handlers_generic_handler(
            "neurontools.v1.MonitorService", monitor_handlers(monitor, self._calls)
        )
        self._server.add_generic_rpc_handlers((handlers, _Elsewhere()))
        self._health = Health(self._calls)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, files: SocketFiles) -> None:
        """Begins to serve; UserError when the address can't be had."""
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
        self.gate.open(opened, files.network_path)
        await announce_health(self._health, ("MonitorService",))
        shown = f"[{host}]" if host and ":" in host else host or "*"
        _log.info("the API over TLS on grpcs://%s:%d", shown, bound)

    async def close(self, patience_seconds: float) -> None:
        """Ends all calls and connections."""
        await self._calls.end(patience_seconds)
        self.gate.close()
        await self._server.stop(patience_seconds)

    def _on_refused(self, who: Mapping[str, object]) -> None:
        """Tells of somebody who was not let in: to the log and what is kept, neither of which they may flood."""
        _tell("the API over TLS refused %s: %s", " ".join(str(who[key]) for key in who if key != "why"), who["why"])
        if self._kept.admits(time.monotonic()):
            self._keep("network_refused", time.time(), who)


class _Elsewhere(grpc.GenericRpcHandler):
    """Says of the other services that they are not on the network, rather than that there are none."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method."""
        if not handler_call_details.method.startswith("/neurontools."):
            return None

        async def refuse(_request: bytes, context: Any) -> bytes:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this is served on the host's own socket alone")
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)
