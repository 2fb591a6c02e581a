"""Real grpcio servers on unix sockets, with handlers of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

Handlers = Mapping[str, "grpc.RpcMethodHandler[bytes, bytes]"]
ServeGrpc = Callable[[Handlers], str]
"""Starts a server for the module; the path of its socket."""
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


MONITOR_SERVICE = "neurontools.v1.MonitorService"


def started(path: str, handlers: Handlers, service: str = "t") -> grpc.Server:
    """A server with these methods of a service."""
    server = grpc.server(ThreadPoolExecutor(8), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
    assert server.add_insecure_port(f"unix:{path}")
    server.start()
    return server
