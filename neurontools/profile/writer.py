"""Writes profiles chunk by chunk: to a bounded file, or to a stream."""

from __future__ import annotations

import errno
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from neurontools.profile import chunks
from neurontools.profile.definitions import (
    GraphDefinition,
    OperatorDefinition,
    ProfileMetadata,
    ProfileState,
    SourceLine,
)

MAX_PENDING_BYTES = 64 << 20

_EVENT_TABLES = ("executions", "spans", "memory_levels", "allocations")
_EVENT_KINDS = frozenset({chunks.OPERATOR_TIMES, *(chunks.TABLE_KINDS[table] for table in _EVENT_TABLES)})
_REPLACED_KINDS = frozenset({chunks.STATE, *(kind for kind, table in chunks.TABLES.items() if table.replaces)})


@dataclass(slots=True)
class NewDefinitions:
    names: list[str] = field(default_factory=list)
    stacks: list[tuple[SourceLine, ...]] = field(default_factory=list)
    graphs: list[GraphDefinition] = field(default_factory=list)
    operators: list[OperatorDefinition] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.names or self.stacks or self.graphs or self.operators)


class ProfileEncoder:
    """Encodes the chunks of one profile, for one thread at a time; subclasses write them in `_emit_chunk`.

    Methods raise the errors of `_emit_chunk`. `dropped` counts the dropped rows of each table.
    """

    def __init__(self, metadata: ProfileMetadata) -> None:
        self.header = b"%s %d %s\n" % (chunks.MAGIC, chunks.VERSION, json.dumps(asdict(metadata)).encode())
        self.dropped: dict[str, int] = {}
        self._places: dict[SourceLine, int] = {}

    def add_definitions(self, new: NewDefinitions) -> None:
        """Adds definitions, which must precede the rows that refer to them."""
        if not new:
            return
        places: list[SourceLine] = []
        stacks = [[self._line_index(place, places) for place in stack] for stack in new.stacks]
        document = {
            "names": new.names,
            "places": list(map(chunks.field_values, places)),
            "stacks": stacks,
            "graphs": list(map(chunks.field_values, new.graphs)),
            "operators": list(map(chunks.field_values, new.operators)),
        }
        self._emit_chunk(chunks.DEFINITIONS, json.dumps(document, separators=(",", ":")).encode(), "definitions", 0)

    def add_rows(self, table: str, columns: Sequence[array[int]]) -> None:
        """Extends a table by rows. Replaces a table of totals or live storages, which has only the latest state."""
        kind = chunks.TABLE_KINDS[table]
        described = chunks.TABLES[kind]
        rows = len(columns[0])
        if rows or described.replaces:
            self._emit_chunk(kind, chunks.encode_table(described, columns), table, rows)

    def add_executions(self, columns: Sequence[array[int]], operator_ns: array[int]) -> None:
        """Adds executions, and the times of their operators."""
        if len(columns[0]):
            self.add_rows("executions", columns)
            payload = chunks.encode_columns([operator_ns])
            self._emit_chunk(chunks.OPERATOR_TIMES, payload, "operator_ns", len(operator_ns))

    def write_state(self, state: ProfileState) -> None:
        """Writes the progress of the profile."""
        document = asdict(state)
        document["dropped"] = {**state.dropped, **self.dropped}
        self._emit_chunk(chunks.STATE, json.dumps(document).encode(), "state", 0)

    def _emit_chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        """Writes a chunk. `rows` is the number of rows of the table `table` in the chunk."""
        raise NotImplementedError

    def _line_index(self, place: SourceLine, new: list[SourceLine]) -> int:
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = len(self._places)
            new.append(place)
        return number


@dataclass(slots=True)
class _EventChunk:
    """The position of a chunk of events in the file, and the number of its rows."""

    offset: int
    size: int
    field: str
    rows: int


class ProfileWriter(ProfileEncoder):
    """Writes one file, for one thread at a time; all methods raise OSError if the disk fails or is full.

    A method writes whole chunks before it returns, so a killed process leaves a readable file. Once the chunks of
    events exceed `most_event_bytes`, the writer drops their older half. It rewrites the file after dropping events, and
    once more than `most_event_bytes` of other chunks are outdated.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: ProfileMetadata, most_event_bytes: int = 16 << 20
    ) -> None:
        super().__init__(metadata)
        self.path = Path(path)
        self.bytes_written = 0
        self._most_event_bytes = most_event_bytes
        self._permanent: list[tuple[int, int]] = []  # (offset, size) of chunks of definitions and steps
        self._latest: dict[bytes, tuple[int, int]] = {}  # (offset, size) of the latest chunk of each of _REPLACED_KINDS
        self._events: list[list[_EventChunk]] = []  # groups of event chunks; the writer drops whole groups
        self._group: list[_EventChunk] = []
        self._event_bytes = self._outdated_bytes = 0
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.size_bytes = 0  # current size of the file in bytes
        self._append(self.header)

    def write_state(self, state: ProfileState) -> None:
        """Ends the group of events, drops the oldest groups if the file is too large, and writes the progress."""
        if self._group:
            self._events.append(self._group)
            self._group = []
        if self._event_bytes > self._most_event_bytes:
            self._drop_oldest_half()
        elif self._outdated_bytes > self._most_event_bytes:
            self._rewrite_file()
        super().write_state(state)

    def close(self) -> None:
        """Closes the file; further calls do nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _drop_oldest_half(self) -> None:
        events = self._events
        while len(events) > 1 and self._event_bytes > self._most_event_bytes // 2:
            for each in events.pop(0):
                self.dropped[each.field] = self.dropped.get(each.field, 0) + each.rows
                self._event_bytes -= each.size
        self._rewrite_file()

    def _rewrite_file(self) -> None:
        draft = self.path.with_name(f".{self.path.name}.draft")
        old, self._file = self._file, os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        size, self.size_bytes = self.size_bytes, 0
        moved: dict[tuple[int, int], tuple[int, int]] = {}  # old to new (offset, size) of each chunk
        try:
            self._append(self.header)
            for where in self._live_chunks():
                moved[where] = self.size_bytes, where[1]
                self._append(os.pread(old, where[1], where[0]))
            draft.replace(self.path)
        except BaseException:
            os.close(self._file)
            self._file, self.size_bytes = old, size
            draft.unlink(missing_ok=True)
            raise
        os.close(old)
        self._permanent = [moved[where] for where in self._permanent]
        self._latest = {kind: moved[where] for kind, where in self._latest.items()}
        self._outdated_bytes = 0
        for group in self._events:
            for each in group:
                each.offset, each.size = moved[each.offset, each.size]

    def _live_chunks(self) -> Iterable[tuple[int, int]]:
        events = [(each.offset, each.size) for group in self._events for each in group]
        return sorted([*self._permanent, *self._latest.values(), *events])

    def _emit_chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        data = chunks.pack_chunk(kind, payload)
        offset_before, size = self.size_bytes, len(data)
        try:
            self._append(data)
        except BaseException:
            os.ftruncate(self._file, offset_before)
            os.lseek(self._file, offset_before, os.SEEK_SET)
            self.size_bytes = offset_before
            raise
        if kind in _REPLACED_KINDS:
            self._outdated_bytes += self._latest.get(kind, (0, 0))[1]
            self._latest[kind] = offset_before, size
        elif kind in _EVENT_KINDS:
            self._group.append(_EventChunk(offset_before, size, table, rows))
            self._event_bytes += size
        else:
            self._permanent.append((offset_before, size))

    def _append(self, data: bytes) -> None:
        if self._file < 0:
            raise ValueError("the profile is closed")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.size_bytes += len(data)
        self.bytes_written += len(data)


class ProfileStream(ProfileEncoder):
    """Collects the chunks of a profile for sending: one thread adds chunks, another thread takes them.

    Methods raise OSError (ENOBUFS) once more than MAX_PENDING_BYTES are pending.
    """

    def __init__(self, metadata: ProfileMetadata) -> None:
        super().__init__(metadata)
        self.size_bytes = 0
        self._pending = bytearray()
        self._lock = Lock()
        self._append(self.header)

    def drain_pending(self) -> bytes:
        """Removes and returns the bytes added since the last call."""
        with self._lock:
            pending, self._pending = self._pending, bytearray()
        return bytes(pending)

    def _emit_chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        del table, rows
        self._append(chunks.pack_chunk(kind, payload))

    def _append(self, data: bytes) -> None:
        with self._lock:
            if len(self._pending) + len(data) > MAX_PENDING_BYTES:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            self._pending += data
        self.size_bytes += len(data)
