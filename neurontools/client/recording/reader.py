"""Reads recordings."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from neurontools.client.recording.codec import (
    MOST_NUMBERS,
    Flat,
    Plan,
    fill,
    parse_snapshot,
    read_integers,
    snapshot_plan,
)
from neurontools.client.recording.field_list import field_list_of
from neurontools.client.recording.prediction import Predictor
from neurontools.client.recording.writer import MAGIC, VERSION
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc import neuron_pb2
from neurontools.rpc.wire import decode_varint
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_PERMISSION, UserError
from neurontools.util.terminal import escape_controls

_LONGEST_HEADER_BYTES = 4096
_LONGEST_VERSION = 9
_LONGEST_LENGTH_BYTES = 6
_LONGEST_REASON = 200
_LARGEST_SNAPSHOT_BYTES = 4 * 2**20  # those of the largest instance have 42,000, with a process on every core
_LONGEST_RECORD_BYTES = 2 * _LARGEST_SNAPSHOT_BYTES


class RecordingReader:
    """One recording; UserError when the file can't be read or is none.

    `trouble` is "" or tells, after `messages` has ended, why it ended before the regular end.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.trouble = ""
        self._position_bytes = 0
        self._shown = escape_controls(path[:200])
        try:
            self._file: BinaryIO = Path(path).open("rb")  # noqa: SIM115 - kept until close
        except FileNotFoundError as error:
            raise UserError(f"{self._shown}: there is no such file; name a recording", EXIT_NOT_FOUND) from error
        except PermissionError as error:
            raise UserError(f"{self._shown}: not permitted; ask its owner for read access", EXIT_PERMISSION) from error
        except OSError as error:
            raise UserError(f"{self._shown}: {error.strerror}; name a recording", EXIT_FAILURE) from error
        self._size_bytes = os.fstat(self._file.fileno()).st_size
        try:
            self.about = self._header()
            self._plan = self._snapshot_plan()
        except OSError as error:
            self._file.close()
            raise UserError(f"{self._shown}: {error.strerror}; name a recording", EXIT_FAILURE) from error
        except BaseException:
            self._file.close()
            raise

    @property
    def read_ratio(self) -> float | None:
        """How much of the file has been read, 0 to 1; None where that can't be known, of a pipe for example."""
        return min(1.0, self._position_bytes / self._size_bytes) if self._size_bytes else None

    def close(self) -> None:
        """Close the file; may be called again."""
        self._file.close()

    def messages(self) -> Iterator[bytes]:
        """The snapshots, oldest first, as the replies of the API have them (GetSnapshotResponse)."""
        for snapshot in self.snapshots():
            yield neuron_pb2.GetSnapshotResponse(snapshot=snapshot).SerializeToString()

    def snapshots(self) -> Iterator[neuron_pb2.Snapshot]:
        """The snapshots, oldest first; the same object may come again, changed."""
        snapshot: neuron_pb2.Snapshot | None = None
        predictor: Predictor | None = None
        inflate = zlib.decompressobj(-15)
        is_ended = False
        for kind, payload in self._records():
            try:
                if kind == b"K":
                    snapshot = parse_snapshot(_decompressed(payload))
                    flat = Flat(snapshot, self._plan)
                    predictor = Predictor(snapshot, self._plan, flat.numbers, flat.histograms)
                    inflate = zlib.decompressobj(-15)
                    _check_time(snapshot)
                    yield snapshot
                elif kind == b"D":
                    if snapshot is None or predictor is None:
                        raise ValueError("a difference without a snapshot before it")
                    told = inflate.decompress(payload, _LARGEST_SNAPSHOT_BYTES)
                    residuals = read_integers(told, MOST_NUMBERS)
                    fill(snapshot, self._plan, *predictor.decode(residuals))
                    _check_time(snapshot)
                    yield snapshot
                elif kind == b"E":
                    is_ended = True
                    break
                # Types that a later minor version adds are passed over.
            except (ValueError, OverflowError, zlib.error) as error:
                reason = escape_controls(" ".join(str(error).split())[:_LONGEST_REASON])
                self.trouble = f"{self._shown}: damaged after {self._place()} ({reason}); it is shown up to there"
                return
        if not is_ended and not self.trouble:
            self.trouble = f"{self._shown}: has no regular end (still being written, or its writer was killed)"

    def _place(self) -> str:
        return f"{self._position_bytes:,} bytes"

    def _header(self) -> dict[str, object]:
        line = self._file.readline(_LONGEST_HEADER_BYTES)
        self._position_bytes += len(line)
        words = line.split(b" ", 2)
        if words[0] != MAGIC:
            what = "it is empty" if not line else "it begins otherwise"
            raise UserError(f"{self._shown}: no recording of neuron-top ({what}); make one with --record FILE")
        is_version = words[1:] and words[1].isdigit() and len(words[1]) <= _LONGEST_VERSION
        if len(words) != 3 or not is_version or not line.endswith(b"\n"):
            raise UserError(f"{self._shown}: the header of the recording is cut off; nothing of it can be shown")
        if int(words[1]) != VERSION:
            raise UserError(
                f"{self._shown}: recording format {int(words[1])}, this neuron-top reads {VERSION}; take a newer one"
            )
        try:
            about = json.loads(words[2])
        except RecursionError:
            raise UserError(f"{self._shown}: the header of the recording is damaged (lists within lists)") from None
        except ValueError as error:
            raise UserError(f"{self._shown}: the header of the recording is damaged ({error})") from error
        return about if isinstance(about, dict) else {}

    def _snapshot_plan(self) -> Plan:
        try:
            return snapshot_plan(field_list_of(self.about))
        except ValueError as error:
            raise UserError(f"{self._shown}: {error}") from None

    def _read(self, count: int) -> bytes:
        """So many bytes, or those that there are; a pipe has no place to ask for, so it is counted."""
        data = self._file.read(count)
        self._position_bytes += len(data)
        return data

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        """Whole records with a right checksum; `trouble` tells of anything else and ends them."""
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
        """The length that begins here; None when it doesn't end."""
        told = b""
        while not told or told[-1] > 127:
            byte = self._read(1)
            if not byte or len(told) == _LONGEST_LENGTH_BYTES:
                return None
            told += byte
        return decode_varint(told, 0)[0]

    def _cut_off(self, start: int) -> str:
        return f"{self._shown}: cut off within a snapshot at byte {start:,}; it is shown up to there"


def _check_time(snapshot: neuron_pb2.Snapshot) -> None:
    if not 0 <= snapshot.taken_at_unix_seconds <= LATEST_UNIX_SECONDS:  # NaN fails too
        raise ValueError("a snapshot of no time that can be shown")


def _decompressed(payload: bytes) -> bytes:
    inflate = zlib.decompressobj()
    data = inflate.decompress(payload, _LARGEST_SNAPSHOT_BYTES)
    if inflate.unconsumed_tail or not inflate.eof:
        raise ValueError("a snapshot is too large or cut off")
    return data
