"""Health and reflection, as grpcurl and orchestrators use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from neurontools.rpc import neuron_pb2 as pb
from tests.harness.running_daemon import RUNTIME, RunningDaemon

SERVICES = ("neurontools.v1.MonitorService", "neurontools.v1.RuntimeService")


@pytest.fixture
def channel(shared_daemon: RunningDaemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{shared_daemon.socket}") as channel:
        yield channel


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_everything_is_healthy(channel: grpc.Channel, service: str) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(request)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_the_health_of_nothing(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nothing"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_describes_every_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(SERVICES) <= set(database.get_services())
    assert "grpc.health.v1.Health" in database.get_services()
    pool = DescriptorPool(database)
    for name in SERVICES:
        described = pool.FindServiceByName(name)
        local = pb.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
        assert [method.name for method in described.methods] == [method.name for method in local.methods]
        for method in described.methods:
            assert method.input_type.full_name.startswith("neurontools.v1.")
    assert pool.FindMessageTypeByName("neurontools.v1.Snapshot").fields_by_name["cores"].number == 8


def test_a_request_above_1_mib_is_refused(channel: grpc.Channel) -> None:
    ask: Any = channel.unary_unary(f"{RUNTIME}/Report")
    for size, code in ((2**20 - 64, grpc.StatusCode.UNAUTHENTICATED), (2**20 + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        with pytest.raises(grpc.RpcError) as caught:
            ask(pb.ReportRequest(token="x" * size).SerializeToString())
        assert caught.value.code() is code
