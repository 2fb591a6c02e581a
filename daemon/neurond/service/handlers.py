"""gRPC servers, and handlers of calls: within limits and role of who calls, with ready-made bytes as replies."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from neurond.peers.limits import Kind
from neurond.service.calls import Calls
from neurond.service.monitor_service import MonitorService
from neurond.system.free_memory import is_out_of_memory, tell_out_of_memory
from neurontools.net.tls.subjects import Role
from neurontools.rpc import neuron_pb2

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


def bare_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """A server without a port and services; further options beat ours."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_told)
    return grpc.aio.server(options=(*_OPTIONS, *options))


def monitor_handlers(monitor: MonitorService, calls: Calls[Any]) -> dict[str, Any]:
    """The handlers of MonitorService. What shows no commands and no users is for every role."""

    def watch_host_summary(request: Any, context: Any) -> Any:
        who = calls.who(context)
        return monitor.watch_host_summary(request, context, Role.SUMMARY if who is None else who.role)

    return {
        "GetSnapshot": unary(calls, monitor.get_snapshot, neuron_pb2.GetSnapshotRequest),
        "WatchSnapshots": stream(calls, monitor.watch_snapshots, neuron_pb2.WatchSnapshotsRequest, Kind.CALL),
        "WatchHostSummary": stream(
            calls, watch_host_summary, neuron_pb2.WatchHostSummaryRequest, Kind.CALL, needs=Role.SUMMARY
        ),
        "ListHistory": stream(calls, monitor.list_history, neuron_pb2.ListHistoryRequest, Kind.CALL, Kind.HISTORY),
        "ListEnded": stream(calls, monitor.list_ended, neuron_pb2.ListEndedRequest, Kind.CALL),
        "RenderDeviceList": unary(calls, monitor.render_device_list, neuron_pb2.RenderDeviceListRequest),
    }


def unary(calls: Calls[Any], behaviour: Any, kind: Any, *, needs: Role = Role.FULL) -> Any:
    """A handler whose reply is ready-made bytes."""

    async def handle(data: bytes, context: Any) -> bytes:
        await calls.admit(context, Kind.CALL, needs=needs)
        reply: bytes = await behaviour(await _read(kind, data, context), context)
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)


def stream(calls: Calls[Any], behaviour: Any, kind: Any, *counted_as: Kind, needs: Role = Role.FULL) -> Any:
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
        tell_out_of_memory("out of memory: a call was not answered")
        return False
    blamed = asyncio.CancelledError | grpc.aio.InternalError | DecodeError
    return not (record.exc_info and isinstance(record.exc_info[1], blamed))
