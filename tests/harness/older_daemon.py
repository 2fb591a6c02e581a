"""Daemons that serve one snapshot: real gRPC servers, one with what a daemon of an older version sent once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc

from neurontools.client.recording import RecordingReader
from neurontools.rpc import neuron_pb2
from tests.harness.grpc_server import MONITOR_SERVICE, started

RECORDING = Path(__file__).parents[1] / "client/golden/without_vcpu_times.rec"
"""Of a daemon from before verdicts."""


class SnapshotServer:
    """Serves `message`, a GetSnapshotResponse, until closed: as the latest snapshot, as the stream, as the past."""

    def __init__(self, socket_path: str, message: bytes) -> None:
        self.socket_path = socket_path
        self._message = message
        handlers: dict[str, Any] = {
            "GetSnapshot": grpc.unary_unary_rpc_method_handler(self._get),
            "WatchSnapshots": grpc.unary_stream_rpc_method_handler(self._watch),
            "ListHistory": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        self._server = started(socket_path, handlers, MONITOR_SERVICE)

    @property
    def message(self) -> bytes:
        """The reply."""
        return self._message

    def close(self) -> None:
        self._server.stop(None).wait()

    def _get(self, _request: bytes, _context: Any) -> bytes:
        return self.message

    def _watch(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield self.message


class OlderDaemon(SnapshotServer):
    """Serves a snapshot of the recording."""

    def __init__(self, socket_path: str) -> None:
        with closing(RecordingReader(str(RECORDING))) as reader:
            super().__init__(socket_path, next(reader.messages()))

    @property
    def message(self) -> bytes:
        """The recorded reply as one of this moment."""
        reply = neuron_pb2.GetSnapshotResponse.FromString(self._message)
        reply.snapshot.taken_at_seconds, reply.snapshot.taken_at_unix_seconds = time.monotonic(), time.time()
        return reply.SerializeToString()
