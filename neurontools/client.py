"""A blocking gRPC client of the monitor daemon, for programs that keep watching.

One-shot commands take `neurontools.cli.ask` instead, which starts faster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from neurontools.errors import EXIT_FAILURE, EXIT_NO_DAEMON, EXIT_PERMISSION, EXIT_TIMED_OUT, UserError
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message

MAX_REPLY_BYTES = 64 * 2**20
_SERVICE = "/neurontools.v1.MonitorService/"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    # A daemon that was restarted is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

# Status of a call: the exit code, and what to say.
_TOLD = {
    grpc.StatusCode.UNAVAILABLE: (
        EXIT_NO_DAEMON,
        'no monitor daemon at {at} ({details}); start one with "neurond --simulate trn1.32xlarge", or name its socket',
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        EXIT_TIMED_OUT,
        "the monitor daemon at {at} gave no answer in time; see its log, or restart it",
    ),
    grpc.StatusCode.PERMISSION_DENIED: (EXIT_PERMISSION, "the monitor daemon at {at} refuses: {details}"),
}
_OTHERWISE = (EXIT_FAILURE, "the monitor daemon at {at} failed ({status}: {details}); is it of another version?")


class Lost(UserError):
    """The daemon can't be reached, or not any more; trying again later may help."""


class Closed(Exception):
    """The client was closed while a call was under way."""


def read_snapshot(message: bytes) -> Snapshot:
    """The snapshot in a reply of `snapshot_message`, `watch_messages` or `history_messages`."""
    return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)


class Client:
    """A connection to the daemon at a unix socket; its methods may be called from several threads.

    Every method raises Lost when the daemon can't be reached, Closed after `close`, and UserError for other failures.
    The `_message` methods answer undecoded replies, cheap to keep; `read_snapshot` decodes one.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float = 5.0) -> None:
        self.socket_path = socket_path
        self._timeout_seconds = timeout_seconds
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=_OPTIONS)
        self._lock = threading.Lock()
        self._calls: set[Any] = set()
        self._is_closed = False

    def snapshot(self) -> Snapshot:
        """The latest snapshot."""
        return read_snapshot(self.snapshot_message())

    def watch(self, interval_seconds: float = 0.0) -> Iterator[Snapshot]:
        """Snapshots as the daemon makes them, at least so far apart; blocks between them, and never ends by itself."""
        return map(read_snapshot, self.watch_messages(interval_seconds))

    def history(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[Snapshot]:
        """The daemon's recent past, oldest first: the last so many seconds (0: all of it), after this sequence."""
        return map(read_snapshot, self.history_messages(duration_seconds, after_sequence=after_sequence))

    def snapshot_message(self) -> bytes:
        """As `snapshot`, undecoded."""
        request = neuron_pb2.GetSnapshotRequest()
        for message in self._stream("GetSnapshot", request, self._timeout_seconds):
            return message
        raise self._lost("the answer was empty")

    def watch_messages(self, interval_seconds: float = 0.0) -> Iterator[bytes]:
        """As `watch`, undecoded."""
        return self._stream("WatchSnapshots", neuron_pb2.WatchSnapshotsRequest(interval_seconds=interval_seconds))

    def history_messages(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[bytes]:
        """As `history`, undecoded."""
        request = neuron_pb2.ListHistoryRequest(duration_seconds=duration_seconds, after_sequence=after_sequence)
        return self._stream("ListHistory", request, self._timeout_seconds)

    def close(self) -> None:
        """End all calls, in whatever thread they block, and the connection. From any thread; may be called again."""
        with self._lock:
            self._is_closed = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, method: str, request: Any, timeout_seconds: float | None = None) -> Iterator[bytes]:
        """The undecoded replies of a call. A unary one is a stream of one reply on the wire, too."""
        ask: Any = self._channel.unary_stream(
            _SERVICE + method, request_serializer=type(request).SerializeToString, response_deserializer=None
        )
        with self._lock:
            if self._is_closed:
                raise Closed
            try:
                call = ask(request, timeout=timeout_seconds)
            except ValueError as error:  # the channel was closed by another thread
                raise Closed from error
            self._calls.add(call)
        try:
            yield from call
        except grpc.RpcError as error:
            if self._is_closed:
                raise Closed from error
            raise self._told(call) from error
        finally:
            call.cancel()
            with self._lock:
                self._calls.discard(call)

    def _told(self, call: Any) -> UserError:
        status, details = call.code(), call.details() or ""
        exit_code, text = _TOLD.get(status, _OTHERWISE)
        told = text.format(at=f"unix:{self.socket_path}", details=details, status=status.name)
        lost = status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        return Lost(told, exit_code) if lost else UserError(told, exit_code)

    def _lost(self, cause: str) -> Lost:
        return Lost(f"the monitor daemon at unix:{self.socket_path} failed: {cause}; restart it", EXIT_NO_DAEMON)
