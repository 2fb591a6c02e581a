"""The blocking client of the monitor daemon, and the reader of a recording."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from neurontools.model import EndedProcess, Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.ask import NoDaemon, TimedOut, ask_error
from neurontools.rpc.call import MAX_TIMEOUT_SECONDS, CallError, StreamConnection
from neurontools.rpc.convert import from_message
from neurontools.rpc.socket_path import candidate_sockets, configured_socket, display_address, validate_socket_path
from neurontools.util.errors import EXIT_FAILURE, EXIT_NO_DAEMON, UserError

if TYPE_CHECKING:
    from neurontools.client.recording import RecordingReader


_SERVICE = "/neurontools.v1.MonitorService/"


@dataclass(frozen=True, slots=True)
class Ended:
    """Ended processes, oldest first. The daemon has no record of processes that ended before
    `known_since_unix_seconds`.
    """

    processes: tuple[EndedProcess, ...]
    known_since_unix_seconds: float


class Closed(Exception):
    """The client was closed before or during a call."""


def connect(socket: str | None = None, *, timeout_seconds: float = 5.0) -> Client:
    """Returns a client of the daemon at the path `socket`. By default, finds the daemon as the commands do.

    The commands use the path in NEURONTOOLS_SOCKET if it is set, else the user's own daemon, else the system's daemon.
    Raises NoDaemon if no daemon runs there or access is denied, UserError for an invalid path. `timeout_seconds`
    applies to each call of the client.
    """
    path = validate_socket_path(socket, "socket") if socket is not None else configured_socket(None, os.environ)
    absent: NoDaemon | None = None
    denied: NoDaemon | None = None
    for candidate in candidate_sockets(os.environ) if path is None else (path,):
        try:
            StreamConnection(candidate, timeout_seconds).close()
        except CallError as error:
            unreachable = ask_error(candidate, error)
            if not isinstance(unreachable, NoDaemon):
                raise unreachable from error
            absent, denied = (
                (absent or unreachable, denied) if unreachable.is_absent else (absent, denied or unreachable)
            )
        else:
            return Client(candidate, timeout_seconds=timeout_seconds)
    raise denied or absent or NoDaemon("no socket to look for a monitor daemon at", EXIT_NO_DAEMON, is_absent=True)


def read_snapshot(message: bytes) -> Snapshot:
    """Decodes a reply of `snapshot_message`, `watch_messages` or `history_messages`."""
    return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)


class Client:
    """A client of the daemon at a unix socket, made by `connect`. As a context manager, it closes itself on exit.

    Methods may be called from several threads. Each call makes its own connection, so a client survives a restart of
    the daemon. Every method raises NoDaemon if the daemon cannot be reached, TimedOut if it does not answer, UserError
    (their base class) for other failures, and Closed after `close`.

    The `_message` methods return undecoded replies, which take little memory; `read_snapshot` decodes a reply.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float = 5.0) -> None:
        self.socket_path = socket_path
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._connections: set[StreamConnection] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client of {display_address(self.socket_path)}{', closed' if self._is_closed else ''}>"

    def snapshot(self, age_seconds: float = 0.0) -> Snapshot:
        """Returns the snapshot of `age_seconds` ago, or the oldest snapshot if the daemon has none that old."""
        return read_snapshot(self.snapshot_message(age_seconds))

    def watch(self, interval_seconds: float = 0.0, *, duration_seconds: float | None = None) -> Iterator[Snapshot]:
        """Yields a snapshot per tick of the daemon, and one when a core changes its owner.

        Snapshots are at least `interval_seconds` apart. Blocks until the next snapshot. Ends after `duration_seconds`,
        or never if that is None.
        """
        return map(read_snapshot, self.watch_messages(interval_seconds, duration_seconds=duration_seconds))

    def history(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[Snapshot]:
        """Yields the daemon's snapshots of the last `duration_seconds` (0: all), oldest first.

        Only snapshots after the sequence number `after_sequence` are included. All snapshots are fetched before the
        first is yielded, so the timeout does not limit how long the caller works on them.
        """
        yield from map(read_snapshot, list(self.history_messages(duration_seconds, after_sequence=after_sequence)))

    def ended(self, since_unix_seconds: float = 0.0) -> Ended:
        """Returns the processes that ended or released their cores since a time; by default, all that are known."""
        request = neuron_pb2.ListEndedRequest(since_unix_seconds=since_unix_seconds).SerializeToString()
        processes: list[EndedProcess] = []
        known_since = 0.0
        for message in self._stream("ListEnded", request, self._timeout_seconds):
            response = neuron_pb2.ListEndedResponse.FromString(message)
            known_since = response.known_since_unix_seconds
            processes += [from_message(EndedProcess, ended) for ended in response.ended]
        return Ended(tuple(processes), known_since)

    def snapshot_message(self, age_seconds: float = 0.0) -> bytes:
        """Returns the same as `snapshot`, as an undecoded reply."""
        request = neuron_pb2.GetSnapshotRequest(age_seconds=age_seconds)
        for message in self._stream("GetSnapshot", request.SerializeToString(), self._timeout_seconds):
            return message
        raise NoDaemon(
            f"the monitor daemon at {display_address(self.socket_path)} answered nothing; restart it",
            EXIT_NO_DAEMON,
            is_absent=False,
        )

    def watch_messages(
        self, interval_seconds: float = 0.0, *, duration_seconds: float | None = None
    ) -> Iterator[bytes]:
        """Yields the same as `watch`, as undecoded replies."""
        request = neuron_pb2.WatchSnapshotsRequest(interval_seconds=interval_seconds).SerializeToString()
        if duration_seconds is None:
            yield from self._stream("WatchSnapshots", request, None)
            return
        ends_at = monotonic() + duration_seconds
        while (now := monotonic()) < ends_at:
            call_seconds = min(ends_at - now, MAX_TIMEOUT_SECONDS)
            try:
                yield from self._stream("WatchSnapshots", request, call_seconds)
            except TimedOut:
                if monotonic() < now + call_seconds:
                    raise

    def history_messages(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[bytes]:
        """Yields the same as `history`, as undecoded replies."""
        request = neuron_pb2.ListHistoryRequest(duration_seconds=duration_seconds, after_sequence=after_sequence)
        return self._stream("ListHistory", request.SerializeToString(), self._timeout_seconds)

    def past(self, before_sequence: int, most: int) -> Iterator[neuron_pb2.ListHistoryResponse]:
        """Yields the last `most` snapshots before a sequence number, newest first, in blocks or zlib-compressed.

        The last block may exceed `most`. An older daemon sends compressed snapshots one by one. A still older one
        ignores the requested limit and order: it sends its whole history, oldest first and not compressed.
        """
        request = neuron_pb2.ListHistoryRequest(
            before_sequence=before_sequence, max_snapshots=most, newest_first=True, packed=True, blocks=True
        )
        for message in self._stream("ListHistory", request.SerializeToString(), self._timeout_seconds):
            reply = neuron_pb2.ListHistoryResponse.FromString(message)
            if not reply.HasField("block") and not reply.packed:
                reply.packed = zlib.compress(message, 1)
            yield reply

    def close(self) -> None:
        """Ends all calls, including calls that block in other threads. Thread-safe and idempotent."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.abort()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, method: str, request: bytes, timeout_seconds: float | None) -> Iterator[bytes]:
        """Calls a method of the daemon and yields its undecoded replies; a unary call has one reply."""
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
            raise ask_error(self.socket_path, error) from error
        finally:
            if connection is not None:
                connection.close()
                with self._lock:
                    self._connections.discard(connection)


class Recording:
    """A recording of `neuron-top --record`, with the methods `snapshot` and `history` of `Client`.

    Can be used as a context manager. Raises UserError if the file cannot be read or is not a recording. Each call reads
    the file again up to its last whole snapshot, so the file may still be growing. After a call, `trouble` says why the
    file ended early; "" if it ended regularly.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.trouble = ""
        self._reader().close()

    def __repr__(self) -> str:
        return f"<Recording {self.path!r}>"

    def snapshot(self) -> Snapshot:
        """Returns the last snapshot of the recording. Raises UserError if the recording has none."""
        last: neuron_pb2.Snapshot | None = None
        for last in self._messages():  # noqa: B007
            pass
        if last is None:
            from neurontools.util.terminal import escape_controls

            raise UserError(f"{escape_controls(self.path[:200])}: holds no snapshot; record again", EXIT_FAILURE)
        return from_message(Snapshot, last)

    def history(self, duration_seconds: float = 0.0, *, after_sequence: int = 0) -> Iterator[Snapshot]:
        """Yields the snapshots of the last `duration_seconds` (0: all), oldest first.

        Only snapshots with a sequence number above `after_sequence` are included.
        """
        since_seconds = float("-inf")
        if duration_seconds > 0:
            for at_seconds, _ in self._timed_messages():
                since_seconds = at_seconds - duration_seconds
        for at_seconds, message in self._timed_messages():
            if at_seconds >= since_seconds and message.sequence > after_sequence:
                yield from_message(Snapshot, message)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing, because no file is open between calls."""

    def _timed_messages(self) -> Iterator[tuple[float, neuron_pb2.Snapshot]]:
        """Yields the monotonic time in seconds of each snapshot, and the snapshot."""
        from neurontools.client.timeline import HostClock

        time, last_seconds = HostClock(), 0.0
        for message in self._messages():
            placed_seconds = time.timeline_seconds(message)
            last_seconds = last_seconds if placed_seconds is None else placed_seconds
            yield last_seconds, message

    def _messages(self) -> Iterator[neuron_pb2.Snapshot]:
        reader = self._reader()
        try:
            yield from reader.snapshots()
            self.trouble = reader.trouble
        finally:
            reader.close()

    def _reader(self) -> RecordingReader:
        from neurontools.client.recording import RecordingReader

        return RecordingReader(self.path)
