"""A blocking client of the monitor daemon, for programs that keep watching.

One-shot commands take `neurontools.cli.daemon.ask`, which is the same without the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from neurontools.errors import EXIT_FAILURE, EXIT_NO_DAEMON, EXIT_PERMISSION, EXIT_TIMED_OUT, UserError
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.rpc.stream import LONGEST_SECONDS, StreamConnection
from neurontools.rpc.unary import STATUS_NAMES, CallError, RpcError, Status, Unreachable

_SERVICE = "/neurontools.v1.MonitorService/"

# Status of a call: the exit code, and what to say.
_TOLD = {
    Status.UNAVAILABLE: (EXIT_NO_DAEMON, "the monitor daemon at {at} went away ({details}); start it again"),
    Status.DEADLINE_EXCEEDED: (
        EXIT_TIMED_OUT,
        "the monitor daemon at {at} gave no answer in time; see its log, or restart it",
    ),
    Status.PERMISSION_DENIED: (EXIT_PERMISSION, "the monitor daemon at {at} refuses: {details}"),
}
_OTHERWISE = (EXIT_FAILURE, "the monitor daemon at {at} failed ({status}: {details}); is it of another version?")
_LOST = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED)


class Lost(UserError):
    """The daemon can't be reached, or not any more; trying again later may help."""


class Closed(Exception):
    """The client was closed while a call was under way, or before."""


def read_snapshot(message: bytes) -> Snapshot:
    """The snapshot in a reply of `snapshot_message`, `watch_messages` or `history_messages`."""
    return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)


class Client:
    """The daemon at a unix socket; each call has a connection of its own. Methods may be called from several threads.

    Every method raises Lost when the daemon can't be reached, Closed after `close`, and UserError for other failures.
    The `_message` methods answer undecoded replies, cheap to keep; `read_snapshot` decodes one.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float = 5.0) -> None:
        self.socket_path = socket_path
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._connections: set[StreamConnection] = set()
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
        for message in self._stream("GetSnapshot", b"", self._timeout_seconds):
            return message
        raise Lost(f"the monitor daemon at unix:{self.socket_path} answered nothing; restart it", EXIT_NO_DAEMON)

    def watch_messages(self, interval_seconds: float = 0.0) -> Iterator[bytes]:
        """As `watch`, undecoded."""
        request = neuron_pb2.WatchSnapshotsRequest(interval_seconds=interval_seconds)
        return self._stream("WatchSnapshots", request.SerializeToString(), LONGEST_SECONDS)

    def history_messages(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[bytes]:
        """As `history`, undecoded."""
        request = neuron_pb2.ListHistoryRequest(duration_seconds=duration_seconds, after_sequence=after_sequence)
        return self._stream("ListHistory", request.SerializeToString(), self._timeout_seconds)

    def close(self) -> None:
        """End all calls, in whatever thread they block. From any thread; may be called again."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.abort()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, method: str, request: bytes, timeout_seconds: float) -> Iterator[bytes]:
        """The undecoded replies of a call. A unary one is a stream of one reply on the wire, too."""
        if self._is_closed:
            raise Closed
        connection: StreamConnection | None = None
        try:
            connection = StreamConnection(self.socket_path, self._timeout_seconds)
            with self._lock:
                if self._is_closed:
                    raise Closed
                self._connections.add(connection)
            yield from connection.messages(_SERVICE + method, request, timeout_seconds=timeout_seconds)
        except CallError as error:
            if self._is_closed:
                raise Closed from error
            raise self._told(error) from error
        finally:
            if connection is not None:
                connection.close()
                with self._lock:
                    self._connections.discard(connection)

    def _told(self, error: CallError) -> UserError:
        at = f"unix:{self.socket_path}"
        if isinstance(error, Unreachable):
            cause = error.reason[:1].lower() + error.reason[1:]
            return Lost(
                f'no monitor daemon at {at} ({cause}); start one with "neurond --simulate trn1.32xlarge", '
                "or name its socket",
                EXIT_NO_DAEMON,
            )
        if not isinstance(error, RpcError):
            return UserError(f"the answer of {at} can't be read ({error}); is something else listening there?")
        exit_code, text = _TOLD.get(error.code, _OTHERWISE)
        status = STATUS_NAMES.get(error.code, str(error.code))
        told = text.format(at=at, details=error.details, status=status)
        return Lost(told, exit_code) if error.code in _LOST else UserError(told, exit_code)
