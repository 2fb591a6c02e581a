"""The gRPC server: its services, health and reflection."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from neurond.peers.limits import Kind
from neurond.service.calls import Calls
from neurond.service.fault_service import FaultService
from neurond.service.monitor_service import MonitorService
from neurond.service.runtime_service import RuntimeService
from neurond.service.standard_services import Health, Reflection
from neurond.system.free_memory import is_out_of_memory, tell_out_of_memory
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


def make_server(
    monitor: MonitorService, runtime: RuntimeService, faults: FaultService, calls: Calls
) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server without a port, and its health servicer, which says SERVING for every service."""
    server = grpc.aio.server(options=_OPTIONS)
    faults.who = calls.who
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_told)
    methods = {
        "MonitorService": {
            "GetSnapshot": _unary(calls, monitor.get_snapshot, neuron_pb2.GetSnapshotRequest),
            "WatchSnapshots": _stream(calls, monitor.watch_snapshots, neuron_pb2.WatchSnapshotsRequest, Kind.CALL),
            "WatchHostSummary": _stream(
                calls, monitor.watch_host_summary, neuron_pb2.WatchHostSummaryRequest, Kind.CALL
            ),
            "ListHistory": _stream(calls, monitor.list_history, neuron_pb2.ListHistoryRequest, Kind.CALL, Kind.HISTORY),
            "ListEnded": _stream(calls, monitor.list_ended, neuron_pb2.ListEndedRequest, Kind.CALL),
            "RenderDeviceList": _unary(calls, monitor.render_device_list, neuron_pb2.RenderDeviceListRequest),
        },
        "RuntimeService": {
            "Attach": _unary(calls, runtime.attach, neuron_pb2.AttachRequest),
            "Report": _unary(calls, runtime.report, neuron_pb2.ReportRequest),
        },
        "FaultService": {
            "InjectFaults": _unary(calls, faults.inject_faults, neuron_pb2.InjectFaultsRequest),
            "HealFaults": _unary(calls, faults.heal_faults, neuron_pb2.HealFaultsRequest),
        },
    }
    names = [f"neurontools.v1.{service}" for service in methods]
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, handlers)
            for name, handlers in zip(names, methods.values(), strict=True)
        )
    )
    servicer = Health(calls)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflected = Reflection(calls, (*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)  # type: ignore[no-untyped-call]
    return server, servicer


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


async def announce_health(servicer: health.aio.HealthServicer) -> None:
    """Says SERVING for the server as a whole and for each service."""
    services = ("MonitorService", "RuntimeService", "FaultService")
    for name in ("", *(f"neurontools.v1.{service}" for service in services)):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


def _unary(calls: Calls, behaviour: Any, kind: Any) -> Any:
    """A handler whose reply is ready-made bytes."""

    async def handle(data: bytes, context: Any) -> bytes:
        await calls.admit(context, Kind.CALL)
        reply: bytes = await behaviour(await _read(kind, data, context), context)
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)


def _stream(calls: Calls, behaviour: Any, kind: Any, *counted_as: Kind) -> Any:
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
        await calls.admit(context, *counted_as)
        await calls.stream(context, send(data, context))

    return grpc.unary_stream_rpc_method_handler(handle)


async def _read(kind: Any, data: bytes, context: Any) -> Any:
    """The request. grpcio would say UNKNOWN of bytes that are none, and log a traceback."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}")
