"""The gRPC server: its services, health and reflection."""

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
from neurond.service.monitor_service import FaultService, MonitorService
from neurond.service.runtime_service import RuntimeService
from neurontools.net.client_roles import Role
from neurontools.rpc import neuron_pb2
from neurontools.util.rate_limited_log import RateLimitedLogger

Context = grpc.aio.ServicerContext[Any, Any]
ENDING = "the daemon is ending"
P = TypeVar("P", bound=Peer)


class OpenCalls(Generic[P]):
    """The open calls of a server. `who` names a peer by what grpcio calls it; None when it has gone."""

    def __init__(self, peers: PeerLimiter, who: Callable[[str], P | None]) -> None:
        self._peers = peers
        self._who = who
        self._is_ending = False
        self._streams: set[asyncio.Task[Any]] = set()

    async def admit(self, context: Context, *kinds: ResourceKind, needs: Role = Role.FULL) -> None:
        """Counts a call, until it has ended, among those of its peer.

        It aborts the call when there are too many, or when the peer may not see what it `needs` to see.
        """
        if self._is_ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDING)
        who = self._who(context.peer())
        if who is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
        if needs is Role.FULL and who.role is not Role.FULL:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this shows commands and users, which takes the role {needs}; your certificate has {who.role}",
            )
        for kind in kinds:
            try:
                self._peers.take(who, kind)
            except LimitReached as limit:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(limit))
            on_done: Any = partial(self._ended, who, kind)  # its type is a class that nobody can be, in the stubs
            context.add_done_callback(on_done)

    def who(self, context: Context) -> P | None:
        """Whose call it is; None when it has gone."""
        return self._who(context.peer())

    def spend(self, context: Context) -> float:
        """Takes note of a further question in an open call; returns the seconds that its answer has to wait."""
        who = self._who(context.peer())
        return 0.0 if who is None else self._peers.spend(who, CALL_COST)

    def _ended(self, who: P, kind: ResourceKind, _context: Context) -> None:
        self._peers.give_back(who, kind)

    async def stream(self, context: Context, replies: Coroutine[Any, Any, None]) -> None:
        """Runs what sends the replies of a stream, to the end of it or of the daemon."""
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
        """Ends all streams and takes no more calls; waits so long at most until their readers know."""
        self._is_ending = True
        streams = set(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams, timeout=patience_seconds)


MAX_REQUEST_BYTES = 2**20  # the largest report there can be has about 0.6 MiB
MAX_STREAMS = 100  # of one connection; RFC 9113 (section 6.5.2) would not have fewer
# grpcio drops calls by chance, anybody's, when a thousand wait for Python. The gate has limits for each peer instead.
_MAX_WAITING_CALLS = 2**20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server.max_pending_requests", _MAX_WAITING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_WAITING_CALLS),
    ("grpc.so_reuseport", 0),
    # Readers come and go quickly: a finished call must not keep its memory for later ones.
    ("grpc.optimization_target", "blend"),
)


def new_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """A server without a port and services; further options beat ours."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_told)
    return grpc.aio.server(options=(*_OPTIONS, *options))


def monitor_handlers(monitor: MonitorService, calls: OpenCalls[Any]) -> dict[str, Any]:
    """The handlers of MonitorService. What shows no commands and no users is for every role."""

    def watch_host_summary(request: Any, context: Any) -> Any:
        who = calls.who(context)
        return monitor.watch_host_summary(request, context, Role.SUMMARY if who is None else who.role)

    return {
        "GetSnapshot": unary_handler(calls, monitor.get_snapshot, neuron_pb2.GetSnapshotRequest),
        "WatchSnapshots": stream_handler(
            calls, monitor.watch_snapshots, neuron_pb2.WatchSnapshotsRequest, ResourceKind.CALL
        ),
        "WatchHostSummary": stream_handler(
            calls, watch_host_summary, neuron_pb2.WatchHostSummaryRequest, ResourceKind.CALL, needs=Role.SUMMARY
        ),
        "ListHistory": stream_handler(
            calls, monitor.list_history, neuron_pb2.ListHistoryRequest, ResourceKind.CALL, ResourceKind.HISTORY
        ),
        "ListEnded": stream_handler(calls, monitor.list_ended, neuron_pb2.ListEndedRequest, ResourceKind.CALL),
        "RenderDeviceList": unary_handler(calls, monitor.render_device_list, neuron_pb2.RenderDeviceListRequest),
    }


def unary_handler(calls: OpenCalls[Any], behaviour: Any, kind: Any, *, needs: Role = Role.FULL) -> Any:
    """A handler whose reply is ready-made bytes."""

    async def handle(data: bytes, context: Any) -> bytes:
        await calls.admit(context, ResourceKind.CALL, needs=needs)
        reply: bytes = await behaviour(await _read(kind, data, context), context)
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)


def stream_handler(
    calls: OpenCalls[Any], behaviour: Any, kind: Any, *counted_as: ResourceKind, needs: Role = Role.FULL
) -> Any:
    """A handler whose replies are ready-made bytes. It ends when the reader is gone."""

    async def send(data: bytes, context: Any) -> None:
        request = await _read(kind, data, context)
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                try:
                    await context.write(reply)
                except grpc.aio.InternalError:  # the reader left while this was written; grpcio would log a traceback
                    return

    async def handle(data: bytes, context: Any) -> None:
        await calls.admit(context, *counted_as, needs=needs)
        await calls.stream(context, send(data, context))

    return grpc.unary_stream_rpc_method_handler(handle)


async def _read(kind: Any, data: bytes, context: Any) -> Any:
    """The request. grpcio would say UNKNOWN of bytes that are none, and log a traceback."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}")


def _is_told(record: logging.LogRecord) -> bool:
    """False for what a client alone is to blame for, and grpcio logs as exceptions that nobody handles.

    It left, or sent what is no message to a service that reads its messages itself: health and reflection. A lack of
    memory is told in a line of ours.
    """
    if record.exc_info and is_out_of_memory(record.exc_info[1]):
        log_out_of_memory("out of memory: a call was not answered")
        return False
    blamed = asyncio.CancelledError | grpc.aio.InternalError | DecodeError
    return not (record.exc_info and isinstance(record.exc_info[1], blamed))


_SERVICES = ("MonitorService", "RuntimeService", "FaultService")


def build_server(
    monitor: MonitorService, runtime: RuntimeService, faults: FaultService, calls: OpenCalls[PeerCredentials]
) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server without a port, and its health servicer, which says SERVING for every service."""
    server = new_server()
    faults.who = calls.who
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
    """Says SERVING for the server as a whole and for each service."""
    for name in ("", *(f"neurontools.v1.{service}" for service in services)):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


class HealthService(health.aio.HealthServicer):
    """Says how services are; who watches one has a call open."""

    def __init__(self, calls: OpenCalls[Any]) -> None:
        super().__init__()
        self._calls = calls

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  (the names are grpcio's)
        """How a service is now."""
        await self._calls.admit(context, ResourceKind.CALL, needs=Role.SUMMARY)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """How a service is, now and whenever that changes."""
        await self._calls.admit(context, ResourceKind.CALL, needs=Role.SUMMARY)
        await self._calls.stream(context, super().Watch(request, context))


class ReflectionService(reflection.aio.ReflectionServicer):
    """Says what services there are. Each question in a stream is work as a call is, since its answer may be long."""

    def __init__(self, calls: OpenCalls[Any], service_names: tuple[str, ...]) -> None:
        super().__init__(service_names)
        self._calls = calls

    async def ServerReflectionInfo(  # type: ignore[override]  # noqa: N802  (the stubs lack that it yields)
        self, request_iterator: AsyncIterable[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Answers the questions of a stream, as many as its peer may ask."""
        await self._calls.admit(context, ResourceKind.CALL)

        async def paced() -> AsyncIterator[Any]:
            async for request in request_iterator:
                await asyncio.sleep(self._calls.spend(context))
                yield request

        answers: Any = super().ServerReflectionInfo(paced(), context)
        async for answer in answers:
            yield answer


log_out_of_memory = RateLimitedLogger(logging.getLogger(__name__), logging.ERROR)

_MANY = 50
_QUIET_SECONDS = 1.0
_LONGEST_SECONDS = 10.0


def is_out_of_memory(error: object) -> bool:
    """Whether an error says that there is no memory.

    protobuf says so in words of its own: a whole message can't be written, one can't be read for want of an arena, or a
    function of its C part fails without saying why.
    """
    if isinstance(error, DecodeError):
        return "alloc" in str(error)
    return isinstance(error, MemoryError | EncodeError | SystemError)


def trim_memory() -> None:
    """Gives back what can be, in some milliseconds; nothing where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryTrimmer:
    """Has memory given back when many calls and connections have come and gone. Pure: `free` does it.

    It waits until none ends any more, because grpcio takes a while to take apart what has ended; where there is no such
    moment, it doesn't wait for ever.
    """

    def __init__(self, free: Callable[[], None] = trim_memory) -> None:
        self._free = free
        self._freed_total = 0
        self._seen_total = 0
        self._seen_seconds = 0.0
        self._many_since_seconds: float | None = None

    def look(self, ended_total: int, now_seconds: float) -> None:
        """Is told from time to time how many have ended so far."""
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
    """Takes the faults of a loop that nobody handled: a lack of memory is a line and no traceback, which takes more."""
    if is_out_of_memory(context.get("exception")):
        log_out_of_memory("out of memory: somebody was not answered")
    else:
        loop.default_exception_handler(context)
