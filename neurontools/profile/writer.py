"""Writes the file of a worker, chunk by chunk, and keeps it within its bounds."""

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


@dataclass(slots=True)
class NewDefinitions:
    """New definitions, to be added to those that were written."""

    names: list[str] = field(default_factory=list)
    stacks: list[tuple[SourceLine, ...]] = field(default_factory=list)
    graphs: list[GraphDefinition] = field(default_factory=list)
    operators: list[OperatorDefinition] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.names or self.stacks or self.graphs or self.operators)


class ProfileEncoder:
    """Makes the chunks of one profile, for one thread at a time; where they go is for `_chunk` of who inherits.

    Methods raise what `_chunk` does. `dropped` are the rows, by table, that were let go of.
    """

    def __init__(self, metadata: ProfileMetadata) -> None:
        self.header = b"%s %d %s\n" % (chunks.MAGIC, chunks.VERSION, json.dumps(asdict(metadata)).encode())
        self.dropped: dict[str, int] = {}
        self._places: dict[SourceLine, int] = {}

    def define(self, new: NewDefinitions) -> None:
        """Adds definitions; what refers to them is written later."""
        if not new:
            return
        places: list[SourceLine] = []
        stacks = [[self._number(place, places) for place in stack] for stack in new.stacks]
        document = {
            "names": new.names,
            "places": list(map(chunks.field_values, places)),
            "stacks": stacks,
            "graphs": list(map(chunks.field_values, new.graphs)),
            "operators": list(map(chunks.field_values, new.operators)),
        }
        self._chunk(chunks.DEFINITIONS, json.dumps(document, separators=(",", ":")).encode(), "definitions", 0)

    def add(self, table: str, columns: Sequence[array[int]]) -> None:
        """Adds rows to a table, or replaces the table where it is one of totals."""
        kind = chunks.TABLE_KINDS[table]
        described = chunks.TABLES[kind]
        rows = len(columns[0])
        if rows or described.replaces:
            self._chunk(kind, chunks.encode_table(described, columns), table, rows)

    def add_executions(self, columns: Sequence[array[int]], operator_ns: array[int]) -> None:
        """Adds executions with the times of their operators."""
        if len(columns[0]):
            self.add("executions", columns)
            payload = chunks.encode_columns([operator_ns])
            self._chunk(chunks.OPERATOR_TIMES, payload, "operator_ns", len(operator_ns))

    def state(self, state: ProfileState) -> None:
        """Says how far the profile came."""
        document = asdict(state)
        document["dropped"] = {**state.dropped, **self.dropped}
        self._chunk(chunks.STATE, json.dumps(document).encode(), "state", 0)

    def _chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        """Takes the next chunk, with so many rows of a table."""
        raise NotImplementedError

    def _number(self, place: SourceLine, new: list[SourceLine]) -> int:
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = len(self._places)
            new.append(place)
        return number


_EVENT_TABLES = ("executions", "spans", "memory_levels", "allocations")
_EVENTS = frozenset({chunks.OPERATOR_TIMES, *(chunks.TABLE_KINDS[table] for table in _EVENT_TABLES)})
_LATEST = frozenset({chunks.STATE, *(kind for kind, table in chunks.TABLES.items() if table.replaces)})


@dataclass(slots=True)
class _Kept:
    """A chunk of events that is in the file: where, how long, and how many rows of which table."""

    offset: int
    size: int
    field: str
    rows: int


class ProfileWriter(ProfileEncoder):
    """Writes one file, for one thread at a time. All methods raise OSError when the disk doesn't take it.

    Each chunk is whole before a method returns, so that a process that is killed leaves what it has written. When the
    chunks of events have more than `most_event_bytes`, the older half of them is dropped; then, and when as much of it
    is outdated, the file is written anew beside itself and put in its place.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: ProfileMetadata, most_event_bytes: int = 16 << 20
    ) -> None:
        super().__init__(metadata)
        self.path = Path(path)
        self.bytes_written = 0
        self._most_event_bytes = most_event_bytes
        self._lasting: list[tuple[int, int]] = []  # chunks that stay: definitions, steps
        self._latest: dict[bytes, tuple[int, int]] = {}  # of kinds that replace what came before
        self._events: list[list[_Kept]] = []  # chunks of events, in groups that stay or go together
        self._group: list[_Kept] = []
        self._event_bytes = self._outdated_bytes = 0
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0
        self._put(self.header)

    def state(self, state: ProfileState) -> None:
        """Says how far the profile came; ends a group of events, and drops the oldest ones where there are too many."""
        if self._group:
            self._events.append(self._group)
            self._group = []
        if self._event_bytes > self._most_event_bytes:
            self._drop_half()
        elif self._outdated_bytes > self._most_event_bytes:
            self._write_anew()
        super().state(state)

    def close(self) -> None:
        """Closes the file; may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _drop_half(self) -> None:
        kept = self._events
        while len(kept) > 1 and self._event_bytes > self._most_event_bytes // 2:
            for each in kept.pop(0):
                self.dropped[each.field] = self.dropped.get(each.field, 0) + each.rows
                self._event_bytes -= each.size
        self._write_anew()

    def _write_anew(self) -> None:
        draft = self.path.with_name(f".{self.path.name}.draft")
        old, self._file = self._file, os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        size, self._size = self._size, 0
        try:
            self._put(self.header)
            moved = {where: self._copied(old, where) for where in self._still_there()}
            draft.replace(self.path)
        except BaseException:
            os.close(self._file)
            self._file, self._size = old, size
            draft.unlink(missing_ok=True)
            raise
        os.close(old)
        self._lasting = [moved[where] for where in self._lasting]
        self._latest = {kind: moved[where] for kind, where in self._latest.items()}
        self._outdated_bytes = 0
        for group in self._events:
            for each in group:
                each.offset, each.size = moved[each.offset, each.size]

    def _still_there(self) -> Iterable[tuple[int, int]]:
        events = [(each.offset, each.size) for group in self._events for each in group]
        return sorted([*self._lasting, *self._latest.values(), *events])

    def _copied(self, source: int, where: tuple[int, int]) -> tuple[int, int]:
        offset, size = where
        begun = self._size
        self._put(os.pread(source, size, offset))
        return begun, size

    def _chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        data = chunks.pack_chunk(kind, payload)
        begun, size = self._size, len(data)
        try:
            self._put(data)
        except BaseException:
            self._take_back(begun)
            raise
        if kind in _LATEST:
            self._outdated_bytes += self._latest.get(kind, (0, 0))[1]
            self._latest[kind] = begun, size
        elif kind in _EVENTS:
            self._group.append(_Kept(begun, size, table, rows))
            self._event_bytes += size
        else:
            self._lasting.append((begun, size))

    def _take_back(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)
        self._size = size

    def _put(self, data: bytes) -> None:
        if self._file < 0:
            raise ValueError("the profile is closed")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(data)
        self.bytes_written += len(data)

    @property
    def size_bytes(self) -> int:
        """What the file has now."""
        return self._size


MOST_WAITING_BYTES = 64 << 20


class ProfileStream(ProfileEncoder):
    """Collects what is to be sent, for one thread at a time; `take` gives the next of it to another.

    Methods raise OSError once more than MOST_WAITING_BYTES wait, because nobody reads them.
    """

    def __init__(self, metadata: ProfileMetadata) -> None:
        super().__init__(metadata)
        self.size_bytes = 0
        self._waiting = bytearray()
        self._lock = Lock()
        self._put(self.header)

    def take(self) -> bytes:
        """What has come since the last time."""
        with self._lock:
            taken, self._waiting = self._waiting, bytearray()
        return bytes(taken)

    def _chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        del table, rows
        self._put(chunks.pack_chunk(kind, payload))

    def _put(self, data: bytes) -> None:
        with self._lock:
            if len(self._waiting) + len(data) > MOST_WAITING_BYTES:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            self._waiting += data
        self.size_bytes += len(data)
