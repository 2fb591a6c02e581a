"""Requests snapshots over one connection without grpcio, for commands that poll for weeks."""

from __future__ import annotations

import _socket

from neurontools.cli.daemon.connection import attach_observer
from neurontools.model import Snapshot
from neurontools.rpc import call, neuron_pb2
from neurontools.rpc.ask import ask_error
from neurontools.rpc.call import CallError
from neurontools.rpc.convert import from_message

_METHOD = "/neurontools.v1.MonitorService/GetSnapshot"
TIMEOUT_SECONDS = 5.0


class DaemonSnapshots:
    """Requests snapshots from a daemon, and reconnects after a failure.

    With `is_observer`, the daemon lists this process as an observer.
    """

    def __init__(self, socket_path: str, *, is_observer: bool = False) -> None:
        self.socket_path = socket_path
        self._is_observer = is_observer
        self._connection: call.UnaryConnection | None = None
        self._presence: _socket.socket | None = None

    def latest(self) -> Snapshot:
        """Returns the latest snapshot. Raises NoDaemon if no daemon answers, UserError if the call fails."""
        return self._call(neuron_pb2.GetSnapshotRequest())

    def past(self, age_seconds: float) -> Snapshot:
        """Returns the snapshot from `age_seconds` ago, or the oldest one if all are newer. Raises as `latest` does."""
        return self._call(neuron_pb2.GetSnapshotRequest(age_seconds=age_seconds))

    def close(self) -> None:
        """Closes the connections. The next request opens them again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.close()

    def _call(self, request: neuron_pb2.GetSnapshotRequest) -> Snapshot:
        try:
            if self._connection is None:
                self._connection = call.UnaryConnection(self.socket_path, TIMEOUT_SECONDS)
                if self._is_observer:
                    self._presence = attach_observer(self.socket_path)
            reply = self._connection.call(_METHOD, request.SerializeToString())
            return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)
        except CallError as error:
            self.close()
            raise ask_error(self.socket_path, error) from error
        except BaseException:
            self.close()
            raise
