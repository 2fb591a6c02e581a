"""A kubelet's pod-resources API: a real gRPC server on a Unix socket, with messages by protobuf itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc

from tests.harness.described_messages import message_class
from tests.harness.grpc_server import started

METHOD = "/v1.PodResourcesLister/List"
# https://github.com/kubernetes/kubelet, pkg/apis/podresources/v1/api.proto
_MESSAGES = {
    "CDIDevice": "name 1 string",
    "ClaimResource": "cdi_devices 1 CDIDevice+; driver_name 2 string; pool_name 3 string; device_name 4 string",
    "DynamicResource": "claim_name 2 string; claim_namespace 3 string; claim_resources 4 ClaimResource+",
    "ContainerDevices": "resource_name 1 string; device_ids 2 string+",
    "ContainerResources": "name 1 string; devices 2 ContainerDevices+; cpu_ids 3 int64+; "
    "dynamic_resources 5 DynamicResource+",
    "PodResources": "name 1 string; namespace 2 string; containers 3 ContainerResources+",
    "ListPodResourcesResponse": "pod_resources 1 PodResources+",
}
_RESPONSE = message_class(_MESSAGES, "ListPodResourcesResponse")


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


class Kubelet:
    """Serves `reply` from `start` to `stop`; with `fault` it fails, and while `hung` is set it says nothing."""

    def __init__(self, path: Path, reply: bytes = b"") -> None:
        self.path = path
        self.reply = reply
        self.fault: grpc.StatusCode | None = None
        self.hung = False
        self.request_total = 0
        self._released = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Serves; the socket is made anew, as by a kubelet that starts."""
        self._released.clear()
        _, service, name = METHOD.split("/")
        self._server = started(str(self.path), {name: grpc.unary_unary_rpc_method_handler(self._answer)}, service)

    def stop(self) -> None:
        """Ends, and takes the socket with it."""
        self._released.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.path.unlink(missing_ok=True)

    def _answer(self, _request: bytes, context: Any) -> bytes:
        self.request_total += 1
        if self.hung:
            self._released.wait()
        if self.fault is not None:
            context.abort(self.fault, "no pods today")
        return self.reply
