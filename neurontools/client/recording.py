"""Reads and writes recordings: compact files of a host's snapshots that stay readable if the writer crashes.

Format, version 2. A file starts with one line of text: `NEURONREC 2 {json}`. The JSON object has the program that wrote
the file, the time when the recording started, and the fields that the program knows (`_known_fields`). Records follow.
Each record has a type (1 byte), the length of its payload (unsigned LEB128), the payload, and the CRC-32 of type and
payload (4 bytes, big endian):

* `K`, a key snapshot: a GetSnapshotResponse of neuron.proto as the daemon sent it, compressed by `MessageCompressor`.
  It starts new zlib streams. The payload is the compressed pieces, each after its length (unsigned LEB128).
* `D`, the next snapshot: it continues the streams of the snapshot before.
* `E`, the regular end of the recording, without payload.

The reader reads a file that ends within a record up to the last whole record.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from neurontools.client.packing import MOST_PIECE_BYTES, MessageCompressor, MessageDecompressor
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import check_snapshot
from neurontools.rpc.wire import decode_varint, encode_varint
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_PERMISSION, UserError
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.version import __version__

_PRIVATE_MODE = 0o600  # snapshots have commands and users
_LONGEST_HEADER_BYTES = 4096
_LONGEST_VERSION = 9
_LONGEST_LENGTH_BYTES = 6
_LONGEST_REASON = 200
_LARGEST_SNAPSHOT_BYTES = 4 * 2**20  # limit; the largest instance with a process on every core has 175,000 bytes
_LONGEST_RECORD_BYTES = 2 * _LARGEST_SNAPSHOT_BYTES
_MOST_PIECES = _LARGEST_SNAPSHOT_BYTES // MOST_PIECE_BYTES + 1
_MOST_PARTS = 20_000  # limit of devices, cores, processes and models; the largest instance in full use has 600


class RecordingReader:
    """Reads one recording. Raises UserError if the file cannot be read or is not a recording.

    After the iteration over `messages` or `snapshots`, `trouble` says why the file ended early; "" if it ended
    regularly.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.trouble = ""
        self._position_bytes = 0
        self._shown = escape_controls(path[:200])
        try:
            self._file: BinaryIO = Path(path).open("rb")  # noqa: SIM115 - kept open until close
        except FileNotFoundError as error:
            raise UserError(f"{self._shown}: there is no such file; name a recording", EXIT_NOT_FOUND) from error
        except PermissionError as error:
            raise UserError(f"{self._shown}: not permitted; ask its owner for read access", EXIT_PERMISSION) from error
        except OSError as error:
            raise UserError(f"{self._shown}: {error.strerror}; name a recording", EXIT_FAILURE) from error
        self._size_bytes = os.fstat(self._file.fileno()).st_size
        try:
            self.about = self._header()
        except OSError as error:
            self._file.close()
            raise UserError(f"{self._shown}: {error.strerror}; name a recording", EXIT_FAILURE) from error
        except BaseException:
            self._file.close()
            raise

    @property
    def read_ratio(self) -> float | None:
        """The fraction of the file that is already read, 0 to 1; None if the size is unknown, as for a pipe."""
        return min(1.0, self._position_bytes / self._size_bytes) if self._size_bytes else None

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    def messages(self) -> Iterator[bytes]:
        """Yields the snapshots, oldest first, each as the bytes of a GetSnapshotResponse."""
        return (message for message, _ in self._read_messages())

    def snapshots(self) -> Iterator[neuron_pb2.Snapshot]:
        """Yields the snapshots, oldest first."""
        return (snapshot for _, snapshot in self._read_messages())

    def _read_messages(self) -> Iterator[tuple[bytes, neuron_pb2.Snapshot]]:
        decompressor: MessageDecompressor | None = None
        is_ended = False
        for kind, payload in self._records():
            if kind == b"E":
                is_ended = True
                break
            if kind not in (b"K", b"D"):
                continue  # skips record types that a later minor version may add
            try:
                if kind == b"K":
                    decompressor = MessageDecompressor(_LARGEST_SNAPSHOT_BYTES)
                elif decompressor is None:
                    raise ValueError("a snapshot without a key snapshot before it")
                message = decompressor.decompress(_split_pieces(payload))
                snapshot = _parse(message)
            except (ValueError, DecodeError) as error:
                reason = escape_controls(" ".join(str(error).split())[:_LONGEST_REASON])
                size = f"{self._position_bytes:,} bytes"
                self.trouble = f"{self._shown}: damaged after {size} ({reason}); it is shown up to there"
                return
            yield message, snapshot
        if not is_ended and not self.trouble:
            self.trouble = f"{self._shown}: has no regular end (still being written, or its writer was killed)"

    def _header(self) -> dict[str, object]:
        line = self._file.readline(_LONGEST_HEADER_BYTES)
        self._position_bytes += len(line)
        words = line.split(b" ", 2)
        if words[0] != MAGIC:
            what = "it is empty" if not line else "it does not start like one"
            raise UserError(f"{self._shown}: not a recording of neuron-top ({what}); make one with --record FILE")
        is_version = words[1:] and words[1].isdigit() and len(words[1]) <= _LONGEST_VERSION
        if len(words) != 3 or not is_version or not line.endswith(b"\n"):
            raise UserError(f"{self._shown}: the header of the recording is cut off; nothing of it can be shown")
        version = int(words[1])
        if version != VERSION:
            step = "take a newer one" if version > VERSION else "make a new recording"
            raise UserError(f"{self._shown}: recording format {version}, this neuron-top reads {VERSION}; {step}")
        try:
            about = json.loads(words[2])
        except RecursionError:
            raise UserError(f"{self._shown}: the header of the recording is damaged (lists within lists)") from None
        except ValueError as error:
            raise UserError(f"{self._shown}: the header of the recording is damaged ({error})") from error
        if not isinstance(about, dict):
            return {}
        try:
            _check_fields(about.get("fields", {}))
        except ValueError as error:
            raise UserError(f"{self._shown}: {error}") from None
        return about

    def _read(self, count: int) -> bytes:
        """Reads at most `count` bytes, and adds up the bytes read, because a pipe has no file position."""
        data = self._file.read(count)
        self._position_bytes += len(data)
        return data

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the type and payload of each record.

        A damaged or incomplete record sets `trouble` and ends the iteration.
        """
        while True:
            start = self._position_bytes
            kind = self._read(1)
            if not kind:
                return
            length = self._length()
            if length is None:
                self.trouble = self._cut_off(start)
                return
            if length > _LONGEST_RECORD_BYTES:
                self.trouble = f"{self._shown}: damaged at byte {start:,}; it is shown up to there"
                return
            payload = self._read(length)
            check = self._read(4)
            if len(payload) < length or len(check) < 4:
                self.trouble = self._cut_off(start)
                return
            if zlib.crc32(kind + payload).to_bytes(4) != check:
                self.trouble = f"{self._shown}: damaged at byte {start:,} (wrong checksum); it is shown up to there"
                return
            yield kind, payload

    def _length(self) -> int | None:
        """Reads and returns the length of a record's payload; None if the length is incomplete or too long."""
        encoded = b""
        while not encoded or encoded[-1] > 127:
            byte = self._read(1)
            if not byte or len(encoded) == _LONGEST_LENGTH_BYTES:
                return None
            encoded += byte
        return decode_varint(encoded, 0)[0]

    def _cut_off(self, start: int) -> str:
        return f"{self._shown}: cut off within a snapshot at byte {start:,}; it is shown up to there"


def _split_pieces(payload: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    position = 0
    while position < len(payload):
        length, position = decode_varint(payload, position)
        pieces.append(payload[position : position + length])
        position += length
        if position > len(payload) or len(pieces) > _MOST_PIECES:
            raise ValueError("the pieces of a snapshot are wrong")
    return pieces


def _parse(message: bytes) -> neuron_pb2.Snapshot:
    snapshot = neuron_pb2.GetSnapshotResponse.FromString(message).snapshot
    check_snapshot(snapshot, _MOST_PARTS)
    if not 0 <= snapshot.taken_at_unix_seconds <= LATEST_UNIX_SECONDS:  # NaN fails this test
        raise ValueError("a snapshot of no time that can be shown")
    return snapshot


def _known_fields() -> dict[str, int]:
    """Returns the highest field number of each message type in a snapshot, keyed by the name of the message type."""
    found: dict[str, int] = {}
    descriptors: list[Descriptor] = [neuron_pb2.Snapshot.DESCRIPTOR]
    while descriptors:
        descriptor = descriptors.pop()
        if descriptor.name not in found:
            found[descriptor.name] = max(field.number for field in descriptor.fields)
            descriptors += [field.message_type for field in descriptor.fields if field.message_type is not None]
    return found


def _check_fields(fields: object) -> None:
    """Raises ValueError if the field list of a header is malformed, or has fields that this version does not know."""
    if not isinstance(fields, dict) or not all(type(number) is int for number in fields.values()):
        raise ValueError("its list of fields is wrong; nothing of it can be shown")
    known = _known_fields()
    newer = sorted(name for name, number in fields.items() if number > known.get(name, 0))
    if newer:
        names = escape_controls(", ".join(newer[:3]))
        raise ValueError(f"it has fields of {names} that this version doesn't know; take a newer neuron-top")


MAGIC = b"NEURONREC"
VERSION = 2
KEY_EVERY = 600
"""The writer writes a key snapshot at least every 600 snapshots."""


class RecordingWriter:
    """Writes snapshots to a new file of mode 0600, without buffering. Thread-safe.

    Raises UserError if the file cannot be created. `write` raises OSError if the file cannot be written, ValueError
    after `close`. `count` is the number of snapshots in the file, `bytes_written` its size.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        self.bytes_written = 0
        self._lock = threading.Lock()  # `close` and `write` may run in different threads at the same time
        self._compressor = MessageCompressor(KEY_EVERY)
        about = {
            "written_by": f"neuron-top {__version__}",
            "started_at_unix_seconds": round(time.time(), 3),
            "fields": _known_fields(),
        }
        try:
            # O_EXCL never overwrites a file, because an old recording cannot be recreated.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_MODE)
            try:
                self._put(MAGIC + b" %d " % VERSION + json.dumps(about).encode() + b"\n")
            except OSError:  # the disk is full
                os.close(self._file)
                Path(path).unlink()
                raise
        except FileExistsError as error:
            text = "the file exists; name a new one or remove it"
            raise UserError(f"the recording {excerpt(path, 200)}: {text}", EXIT_FAILURE) from error
        except OSError as error:
            text = f"{error.strerror}; name a file that can be written"
            raise UserError(f"the recording {excerpt(path, 200)}: {text}", EXIT_FAILURE) from error

    def write(self, message: bytes) -> None:
        """Appends a snapshot to the file; `message` is a reply of `Client.watch_messages`."""
        with self._lock:
            if self._file < 0:
                raise ValueError("the recording is closed")
            pieces = self._compressor.compress(message)
            kind = b"K" if self._compressor.message_count == 1 else b"D"
            self._record(kind, b"".join(encode_varint(len(piece)) + piece for piece in pieces))
            self.count += 1

    def close(self) -> None:
        """Writes the end record and closes the file. Idempotent."""
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

    def _record(self, kind: bytes, payload: bytes) -> None:
        self._put(kind + encode_varint(len(payload)) + payload + zlib.crc32(kind + payload).to_bytes(4))

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.bytes_written += len(data)
