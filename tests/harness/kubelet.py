"""A kubelet's pod-resources API: a real gRPC server on a Unix socket, with messages by protobuf itself."""

from __future__ import annotations

import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/v1.PodResourcesLister/List"

_STRING, _MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64

# Message: field: (number, type, repeated). https://github.com/kubernetes/kubelet, pkg/apis/podresources/v1/api.proto
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "CDIDevice": {"name": (1, "string", False)},
    "ClaimResource": {
        "cdi_devices": (1, "CDIDevice", True),
        "driver_name": (2, "string", False),
        "pool_name": (3, "string", False),
        "device_name": (4, "string", False),
    },
    "DynamicResource": {
        "claim_name": (2, "string", False),
        "claim_namespace": (3, "string", False),
        "claim_resources": (4, "ClaimResource", True),
    },
    "ContainerDevices": {"resource_name": (1, "string", False), "device_ids": (2, "string", True)},
    "ContainerResources": {
        "name": (1, "string", False),
        "devices": (2, "ContainerDevices", True),
        "cpu_ids": (3, "int64", True),
        "dynamic_resources": (5, "DynamicResource", True),
    },
    "PodResources": {
        "name": (1, "string", False),
        "namespace": (2, "string", False),
        "containers": (3, "ContainerResources", True),
    },
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
}


def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = {"string": _STRING, "int64": _INT64}.get(kind, _MESSAGE)
            if added.type == _MESSAGE:
                added.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


_RESPONSE = _response_class()


def pod(name: str, namespace: str, container: str, **resources: list[str]) -> dict[str, Any]:
    """A pod that was given things: by resource of a device plugin (`neuron`, `neuroncore`), by claim with `claimed`."""
    claimed = resources.pop("claimed", [])
    claim = {
        "claim_name": f"{name}-neurons",
        "claim_namespace": namespace,
        "claim_resources": [
            {
                "driver_name": driver,
                "pool_name": "ip-10-0-0-1",
                "device_name": device,
                "cdi_devices": [{"name": f"k8s.{driver}/device={device}"}],
            }
            for driver, _, device in (each.partition("/") for each in claimed)
        ],
    }
    given = {
        "name": container,
        "devices": [{"resource_name": f"aws.amazon.com/{name}", "device_ids": ids} for name, ids in resources.items()],
        "cpu_ids": [0, 1, 200],
        "dynamic_resources": [claim] if claimed else [],
    }
    return {"name": name, "namespace": namespace, "containers": [given]}


def reply_of(*pods: dict[str, Any]) -> bytes:
    """A ListPodResourcesResponse."""
    encoded: bytes = _RESPONSE(pod_resources=list(pods)).SerializeToString()
    return encoded


class Kubelet(grpc.GenericRpcHandler):
    """Serves `reply` from `start` to `stop`; with `fault` it fails, and while `hung` is set it says nothing."""

    def __init__(self, path: Path, reply: bytes = b"") -> None:
        self.path = path
        self.reply = reply
        self.fault: grpc.StatusCode | None = None
        self.hung = False
        self.asked_total = 0
        self._released = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Serves; the socket is made anew, as by a kubelet that starts."""
        self._released.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        """Ends, and takes the socket with it."""
        self._released.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.path.unlink(missing_ok=True)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != METHOD:
            return None

        def answer(_request: bytes, context: Any) -> bytes:
            self.asked_total += 1
            if self.hung:
                self._released.wait()
            if self.fault is not None:
                context.abort(self.fault, "no pods today")
            return self.reply

        return grpc.unary_unary_rpc_method_handler(answer)
