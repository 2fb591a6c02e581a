"""The gRPC server: its services, health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from neurond.peers.credentials import Credentials
from neurond.service.calls import Calls
from neurond.service.fault_service import FaultService
from neurond.service.handlers import bare_server, monitor_handlers, unary
from neurond.service.monitor_service import MonitorService
from neurond.service.runtime_service import RuntimeService
from neurond.service.standard_services import Health, Reflection
from neurontools.rpc import neuron_pb2

_SERVICES = ("MonitorService", "RuntimeService", "FaultService")


def make_server(
    monitor: MonitorService, runtime: RuntimeService, faults: FaultService, calls: Calls[Credentials]
) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server without a port, and its health servicer, which says SERVING for every service."""
    server = bare_server()
    faults.who = calls.who
    methods = {
        "MonitorService": monitor_handlers(monitor, calls),
        "RuntimeService": {
            "Attach": unary(calls, runtime.attach, neuron_pb2.AttachRequest),
            "Report": unary(calls, runtime.report, neuron_pb2.ReportRequest),
        },
        "FaultService": {
            "InjectFaults": unary(calls, faults.inject_faults, neuron_pb2.InjectFaultsRequest),
            "HealFaults": unary(calls, faults.heal_faults, neuron_pb2.HealFaultsRequest),
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


async def announce_health(servicer: health.aio.HealthServicer, services: tuple[str, ...] = _SERVICES) -> None:
    """Says SERVING for the server as a whole and for each service."""
    for name in ("", *(f"neurontools.v1.{service}" for service in services)):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
