"""The gRPC servers: handlers, limits on calls, health and reflection services, and freeing memory after floods."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, EncodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from neurond.peers.connection_proxy import CALL_COST
from neurond.peers.limits import LimitReached, Peer, PeerCredentials, PeerLimiter, ResourceKind
from neurond.service.diagnosis_service import DiagnosisService
from neurond.service.monitor_service import FaultService, MonitorService
from neurond.service.runtime_service import RuntimeService
from neurontools.net.tls import Role
from neurontools.rpc import neuron_pb2
from neurontools.util.rate_limited_log import RateLimitedLogger

Context = grpc.aio.ServicerContext[Any, Any]
ENDING = "the daemon is ending"
P = TypeVar("P", bound=Peer)


class OpenCalls(Generic[P]):
    """Tracks the open calls of a server. `find_peer` maps grpcio's peer name to the peer; None after a disconnect."""

    def __init__(self, peers: PeerLimiter, find_peer: Callable[[str], P | None]) -> None:
        self._peers = peers
        self._find_peer = find_peer
        self._is_ending = False
        self._streams: set[asyncio.Task[Any]] = set()

    async def admit(self, context: Context, *kinds: ResourceKind, needs: Role = Role.FULL) -> None:
        """Counts a call until it ends. Aborts the call if its peer is at a limit or lacks the role `needs`."""
        if self._is_ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDING)
        peer = self._find_peer(context.peer())
        if peer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
        if needs is Role.FULL and peer.role is not Role.FULL:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this shows commands and users, which needs the role {needs}; your certificate has {peer.role}",
            )
        for kind in kinds:
            try:
                self._peers.take(peer, kind)
            except LimitReached as limit:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(limit))
            on_done: Any = partial(self._ended, peer, kind)  # no function satisfies the callback type in grpcio's stubs
            context.add_done_callback(on_done)

    def peer_of_call(self, context: Context) -> P | None:
        return self._find_peer(context.peer())

    def spend(self, context: Context) -> float:
        """Charges a peer for another request in an open call. Returns how many seconds the request has to wait."""
        peer = self._find_peer(context.peer())
        return 0.0 if peer is None else self._peers.spend(peer, CALL_COST)

    def _ended(self, peer: P, kind: ResourceKind, _context: Context) -> None:
        self._peers.release(peer, kind)

    async def stream(self, context: Context, replies: Coroutine[Any, Any, None]) -> None:
        """Sends the replies of a streaming call. Aborts the call when the daemon ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a coroutine runs in a task)
        self._streams.add(task)
        try:
            await replies
        except asyncio.CancelledError:
            if not self._is_ending or task.uncancel():
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDING)
        finally:
            self._streams.discard(task)

    async def end(self, patience_seconds: float) -> None:
        """Refuses new calls and aborts all streaming calls. Waits at most `patience_seconds` for the streams to end."""
        self._is_ending = True
        streams = set(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams, timeout=patience_seconds)


MAX_REQUEST_BYTES = 2**20  # largest accepted message; the largest possible report has about 0.6 MiB
MAX_STREAMS = 100  # most concurrent calls per connection; RFC 9113 (section 6.5.2) recommends at least 100
# By default, grpcio drops random calls when 1000 wait for Python. The connection proxy limits each peer instead.
_MAX_WAITING_CALLS = 2**20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server.max_pending_requests", _MAX_WAITING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_WAITING_CALLS),
    ("grpc.so_reuseport", 0),
    # Clients connect and disconnect often: grpcio must not keep the memory of ended calls for later calls.
    ("grpc.optimization_target", "blend"),
)


def new_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """Creates a gRPC server without a port and without services. `options` override the default options."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_logged)
    return grpc.aio.server(options=(*_OPTIONS, *options))


def monitor_handlers(monitor: MonitorService, calls: OpenCalls[Any]) -> dict[str, Any]:
    """Returns the handlers of MonitorService. All roles may call methods that show neither commands nor users."""

    def watch_host_summary(request: Any, context: Any) -> Any:
        peer = calls.peer_of_call(context)
        return monitor.watch_host_summary(request, context, Role.SUMMARY if peer is None else peer.role)

    return {
        "GetSnapshot": unary_handler(calls, monitor.get_snapshot, neuron_pb2.GetSnapshotRequest),
        "WatchSnapshots": stream_handler(calls, monitor.watch_snapshots, neuron_pb2.WatchSnapshotsRequest),
        "WatchHostSummary": stream_handler(
            calls, watch_host_summary, neuron_pb2.WatchHostSummaryRequest, needs=Role.SUMMARY
        ),
        "ListHistory": stream_handler(calls, monitor.list_history, neuron_pb2.ListHistoryRequest, ResourceKind.HISTORY),
        "ListEnded": stream_handler(calls, monitor.list_ended, neuron_pb2.ListEndedRequest),
        "RenderDeviceList": unary_handler(calls, monitor.render_device_list, neuron_pb2.RenderDeviceListRequest),
    }


def unary_handler(calls: OpenCalls[Any], behaviour: Any, kind: Any, *, needs: Role = Role.FULL) -> Any:
    async def handle(data: bytes, context: Any) -> bytes:
        await calls.admit(context, ResourceKind.CALL, needs=needs)
        reply: bytes = await behaviour(await _read(kind, data, context), context)
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)


def stream_handler(
    calls: OpenCalls[Any], behaviour: Any, kind: Any, *also_counted: ResourceKind, needs: Role = Role.FULL
) -> Any:
    """Returns a gRPC handler for a method that streams its replies as bytes until the client disconnects.

    A stream counts as a call, and as the resources `also_counted`.
    """

    async def send(data: bytes, context: Any) -> None:
        request = await _read(kind, data, context)
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                try:
                    await context.write(reply)
                except grpc.aio.InternalError:  # the client has disconnected; grpcio would log a traceback
                    return

    async def handle(data: bytes, context: Any) -> None:
        await calls.admit(context, ResourceKind.CALL, *also_counted, needs=needs)
        await calls.stream(context, send(data, context))

    return grpc.unary_stream_rpc_method_handler(handle)


async def _read(kind: Any, data: bytes, context: Any) -> Any:
    """Parses a request. Aborts the call if it is invalid: grpcio would answer UNKNOWN and log a traceback."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}")


def _is_logged(record: logging.LogRecord) -> bool:
    """A logging filter: drops tracebacks about client errors, and replaces those about exhausted memory by one line.

    Client errors are disconnects during a call, and invalid messages to the services health and reflection.
    """
    if record.exc_info and is_out_of_memory(record.exc_info[1]):
        log_out_of_memory("out of memory: a call was not answered")
        return False
    blamed = asyncio.CancelledError | grpc.aio.InternalError | DecodeError
    return not (record.exc_info and isinstance(record.exc_info[1], blamed))


_SERVICES = ("MonitorService", "RuntimeService", "FaultService", "DiagnosisService")


def build_server(
    monitor: MonitorService,
    runtime: RuntimeService,
    faults: FaultService,
    diagnosis: DiagnosisService,
    calls: OpenCalls[PeerCredentials],
) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """Creates the gRPC server of the daemon's Unix socket, without a port, and its health service."""
    server = new_server()
    faults.peer_of_call = diagnosis.peer_of_call = calls.peer_of_call
    methods = {
        "MonitorService": monitor_handlers(monitor, calls),
        "RuntimeService": {
            "Attach": unary_handler(calls, runtime.attach, neuron_pb2.AttachRequest),
            "Report": unary_handler(calls, runtime.report, neuron_pb2.ReportRequest),
        },
        "FaultService": {
            "InjectFaults": unary_handler(calls, faults.inject_faults, neuron_pb2.InjectFaultsRequest),
            "HealFaults": unary_handler(calls, faults.heal_faults, neuron_pb2.HealFaultsRequest),
        },
        "DiagnosisService": {
            "ReportDiagnosis": unary_handler(calls, diagnosis.report, neuron_pb2.ReportDiagnosisRequest),
        },
    }
    names = [f"neurontools.v1.{service}" for service in methods]
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, handlers)
            for name, handlers in zip(names, methods.values(), strict=True)
        )
    )
    servicer = HealthService(calls)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflected = ReflectionService(calls, (*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)  # type: ignore[no-untyped-call]
    return server, servicer


async def announce_health(servicer: health.aio.HealthServicer, services: tuple[str, ...] = _SERVICES) -> None:
    """Sets the health status SERVING for the server as a whole and for each service."""
    for name in ("", *(f"neurontools.v1.{service}" for service in services)):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


class HealthService(health.aio.HealthServicer):
    """grpcio's health service, under the same limits as all other calls."""

    def __init__(self, calls: OpenCalls[Any]) -> None:
        super().__init__()
        self._calls = calls

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  (the names are grpcio's)
        await self._calls.admit(context, ResourceKind.CALL, needs=Role.SUMMARY)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        await self._calls.admit(context, ResourceKind.CALL, needs=Role.SUMMARY)
        await self._calls.stream(context, super().Watch(request, context))


class ReflectionService(reflection.aio.ReflectionServicer):
    """grpcio's reflection service, with limits. Each request of a stream costs as much as a call."""

    def __init__(self, calls: OpenCalls[Any], service_names: tuple[str, ...]) -> None:
        super().__init__(service_names)
        self._calls = calls

    async def ServerReflectionInfo(  # type: ignore[override]  # noqa: N802  (the stubs lack that it yields)
        self, request_iterator: AsyncIterable[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Answers the requests of a stream at the rate that the limits allow the peer."""
        await self._calls.admit(context, ResourceKind.CALL)

        async def rate_limited() -> AsyncIterator[Any]:
            async for request in request_iterator:
                await asyncio.sleep(self._calls.spend(context))
                yield request

        answers: Any = super().ServerReflectionInfo(rate_limited(), context)
        async for answer in answers:
            yield answer


log_out_of_memory = RateLimitedLogger(logging.getLogger(__name__), logging.ERROR)

_MANY = 50
_QUIET_SECONDS = 1.0
_LONGEST_SECONDS = 10.0


def is_out_of_memory(error: object) -> bool:
    """Returns whether an error means that memory is exhausted.

    When memory is exhausted, protobuf raises EncodeError, DecodeError about an allocation, or SystemError.
    """
    if isinstance(error, DecodeError):
        return "alloc" in str(error)
    return isinstance(error, MemoryError | EncodeError | SystemError)


def trim_memory() -> None:
    """Returns free heap pages to the kernel with malloc_trim, if the C library has it. Takes some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Calls `free` after a flood of calls and connections, because the C library keeps the memory that they used.

    First waits until no call has ended for a second, at most ten seconds: grpcio frees ended calls late.
    """

    def __init__(self, free: Callable[[], None] = trim_memory) -> None:
        self._free = free
        self._freed_total = 0
        self._seen_total = 0
        self._seen_seconds = 0.0
        self._many_since_seconds: float | None = None

    def update(self, ended_total: int, now_seconds: float) -> None:
        """Updates the number of calls and connections that have ended so far, and calls `free` after a flood."""
        if ended_total != self._seen_total:
            self._seen_total, self._seen_seconds = ended_total, now_seconds
        if ended_total - self._freed_total < _MANY:
            return
        if self._many_since_seconds is None:
            self._many_since_seconds = now_seconds
        is_quiet = now_seconds - self._seen_seconds >= _QUIET_SECONDS
        if is_quiet or now_seconds - self._many_since_seconds >= _LONGEST_SECONDS:
            self._freed_total, self._many_since_seconds = ended_total, None
            self._free()


def handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an unhandled exception of an event loop. If memory is exhausted, logs one line: a traceback needs memory."""
    if is_out_of_memory(context.get("exception")):
        log_out_of_memory("out of memory: a request was not answered")
    else:
        loop.default_exception_handler(context)
