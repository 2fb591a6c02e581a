"""The gRPC server: both services, health and reflection."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from neurond.service.monitor_service import MonitorService
from neurond.service.runtime_service import RuntimeService
from neurontools.rpc import neuron_pb2

MAX_REQUEST_BYTES = 4 * 2**20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),
    # Readers come and go quickly: a finished call must not keep its memory for later ones.
    ("grpc.optimization_target", "blend"),
)


def make_server(monitor: MonitorService, runtime: RuntimeService) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server without a port, and its health servicer, which says SERVING for every service."""
    server = grpc.aio.server(options=_OPTIONS)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_cancellation)
    methods = {
        "MonitorService": {
            "GetSnapshot": _unary(monitor.get_snapshot, neuron_pb2.GetSnapshotRequest),
            "WatchSnapshots": _stream(monitor.watch_snapshots, neuron_pb2.WatchSnapshotsRequest),
            "ListHistory": _stream(monitor.list_history, neuron_pb2.ListHistoryRequest),
            "RenderDeviceList": _unary(monitor.render_device_list, neuron_pb2.RenderDeviceListRequest),
        },
        "RuntimeService": {
            "Attach": _unary(runtime.attach, neuron_pb2.AttachRequest),
            "Report": _unary(runtime.report, neuron_pb2.ReportRequest),
        },
    }
    names = [f"neurontools.v1.{service}" for service in methods]
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, handlers)
            for name, handlers in zip(names, methods.values(), strict=True)
        )
    )
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, servicer


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """False for calls that the end of the daemon cancels, which grpcio logs as exceptions that nobody handles."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def announce_health(servicer: health.aio.HealthServicer) -> None:
    """Says SERVING for the server as a whole and for each service."""
    for name in ("", "neurontools.v1.MonitorService", "neurontools.v1.RuntimeService"):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


def _unary(behaviour: Any, kind: Any) -> Any:
    """A handler whose reply is ready-made bytes."""

    async def handle(data: bytes, context: Any) -> bytes:
        reply: bytes = await behaviour(await _read(kind, data, context), context)
        return reply

    return grpc.unary_unary_rpc_method_handler(handle)


def _stream(behaviour: Any, kind: Any) -> Any:
    """A handler whose replies are ready-made bytes. It ends when the reader is gone."""

    async def handle(data: bytes, context: Any) -> None:
        request = await _read(kind, data, context)
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                try:
                    await context.write(reply)
                except grpc.aio.InternalError:  # the reader left while this was written; grpcio would log a traceback
                    return

    return grpc.unary_stream_rpc_method_handler(handle)


async def _read(kind: Any, data: bytes, context: Any) -> Any:
    """The request. grpcio would say UNKNOWN of bytes that are none, and log a traceback."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {kind.DESCRIPTOR.full_name}")
