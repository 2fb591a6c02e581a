"""A unary call by grpcio, for replies that `rpc.call` doesn't do."""

from __future__ import annotations

from typing import Any

import grpc

from neurontools.rpc.call import RpcError
from neurontools.rpc.socket_path import grpc_target


def call(socket_path: str, method: str, request: bytes, *, timeout_seconds: float) -> bytes:
    """The reply to one call; RpcError as `rpc.call.call` raises it."""
    with grpc.insecure_channel(grpc_target(socket_path)) as channel:
        try:
            ask: Any = channel.unary_unary(method)  # without serialisers: bytes as they are
            reply: bytes = ask(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            # What a call raises is also the call (grpc.Call), which has these two.
            raise RpcError(error.code().value[0], error.details() or "") from error
    return reply
