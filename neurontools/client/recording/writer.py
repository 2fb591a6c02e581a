"""Writes recordings."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib

from neurontools.client.recording.codec import Flat, snapshot_plan, write_integers
from neurontools.client.recording.field_list import CURRENT
from neurontools.client.recording.prediction import Predictor
from neurontools.rpc import neuron_pb2
from neurontools.rpc.wire import encode_varint
from neurontools.util.errors import EXIT_FAILURE, UserError
from neurontools.util.version import __version__

MAGIC = b"NEURONREC"
VERSION = 1
KEY_EVERY = 600
"""A key snapshot at least so often, in snapshots: what is lost at most when a record in the middle is damaged."""


class RecordingWriter:
    """Writes snapshots to a new file, each whole before `write` returns; from any thread.

    OSError when the file can't be created or written, ValueError when it is closed. `count` and `bytes_written` tell
    what is in the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        self.bytes_written = 0
        self._lock = threading.Lock()  # whoever closes may be another than who writes
        self._plan = snapshot_plan(CURRENT)
        self._shape: tuple[object, ...] | None = None
        self._predictor: Predictor | None = None
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        self._since_key = 0
        # Never over something that is there: a recording can't be made again.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        about = {
            "written_by": f"neuron-top {__version__}",
            "started_at_unix_seconds": round(time.time(), 3),
            "fields": dict(CURRENT),
        }
        self._put(MAGIC + b" %d " % VERSION + json.dumps(about).encode() + b"\n")

    def write(self, message: bytes) -> None:
        """Add a snapshot: a reply of `Client.watch_messages`."""
        self.write_snapshot(neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)

    def write_snapshot(self, snapshot: neuron_pb2.Snapshot) -> None:
        """Add a snapshot."""
        with self._lock:
            self._write(snapshot)

    def close(self) -> None:
        """Mark the regular end; may be called again."""
        with self._lock:
            if self._file < 0:
                return
            try:
                self._record(b"E", b"")
            except OSError:
                pass
            finally:
                os.close(self._file)
                self._file = -1

    def _write(self, snapshot: neuron_pb2.Snapshot) -> None:
        if self._file < 0:
            raise ValueError("the recording is closed")
        flat = Flat(snapshot, self._plan)
        if self._predictor is None or flat.shape != self._shape or self._since_key >= KEY_EVERY:
            payload = zlib.compress(snapshot.SerializeToString(), 9)
            self._record(b"K", payload)
            self._predictor = Predictor(snapshot, self._plan, flat.numbers, flat.histograms)
            self._shape = flat.shape
            self._deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            self._since_key = 0
        else:
            residuals = write_integers(self._predictor.encode(flat.numbers, flat.histograms))
            self._record(b"D", self._deflate.compress(residuals) + self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._since_key += 1
        self.count += 1

    def _record(self, kind: bytes, payload: bytes) -> None:
        self._put(kind + encode_varint(len(payload)) + payload + zlib.crc32(kind + payload).to_bytes(4))

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.bytes_written += len(data)


def new_recording(path: str) -> RecordingWriter:
    """A writer for a file that a user named; UserError when it can't be created."""
    try:
        return RecordingWriter(path)
    except FileExistsError as error:
        raise UserError(f"--record {path}: the file exists; name a new one or remove it", EXIT_FAILURE) from error
    except OSError as error:
        raise UserError(f"--record {path}: {error.strerror}; name a file that can be written", EXIT_FAILURE) from error
