"""A grpcio server that answers RenderDeviceList from a snapshot, for the tests of the commands."""

from __future__ import annotations

from typing import Any

import grpc

from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.views.device_list import NoSuchDevice, device_list_json, device_list_table
from tests.harness.grpc_server import MONITOR_SERVICE, started

Request = neuron_pb2.RenderDeviceListRequest


class MonitorServer:
    """Serves at `socket_path` until closed. `status`: what every call ends with."""

    def __init__(self, socket_path: str, snapshot: Snapshot) -> None:
        self.socket_path = socket_path
        self.snapshot = snapshot
        self.status: tuple[grpc.StatusCode, str] | None = None
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._answer, Request.FromString, neuron_pb2.RenderDeviceListResponse.SerializeToString
        )
        self._server = started(socket_path, {"RenderDeviceList": handler}, MONITOR_SERVICE)

    def close(self) -> None:
        self._server.stop(None).wait()

    def _answer(self, request: Request, context: Any) -> neuron_pb2.RenderDeviceListResponse:
        if self.status is not None:
            context.abort(*self.status)
        try:
            document = self._document(request)
        except NoSuchDevice as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return neuron_pb2.RenderDeviceListResponse(document=document.encode())

    def _document(self, request: Request) -> str:
        parameters: dict[str, Any] = {
            "all_processes": request.all_processes,
            "logical_neuroncore_config": request.logical_neuroncore_config or None,
            "device_indices": request.device_indices,
        }
        if request.format == Request.FORMAT_JSON:
            return device_list_json(self.snapshot, **parameters)
        return device_list_table(self.snapshot, wide=request.wide, topology=request.topology, **parameters)
