"""Writes the file of a worker, chunk by chunk, and keeps it within its bounds."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from neurontools.profile import chunks
from neurontools.profile.definitions import Graph, Operator, Place
from neurontools.profile.metadata import Metadata, State

_EVENTS = frozenset({*map(chunks.TABLE_KINDS.__getitem__, ("executions", "spans", "memory_levels", "allocations"))})


@dataclass(slots=True)
class Definitions:
    """New definitions, to be added to those that are in the file."""

    names: list[str] = field(default_factory=list)
    stacks: list[tuple[Place, ...]] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.names or self.stacks or self.graphs or self.operators)


@dataclass(slots=True)
class _Kept:
    """A chunk of events that is in the file: where, how long, and how many rows of which table."""

    offset: int
    size: int
    field: str
    rows: int


class ProfileWriter:
    """Writes one file, for one thread at a time. All methods raise OSError when the disk doesn't take it.

    Each chunk is whole before a method returns, so that a process that is killed leaves what it has written. When the
    chunks of events have more than `most_event_bytes`, the older half of them is dropped; then, and when as much of it
    is outdated, the file is written anew beside itself and put in its place.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: Metadata, most_event_bytes: int = 16 << 20) -> None:
        self.path = Path(path)
        self.dropped: dict[str, int] = {}
        self.bytes_written = 0
        self._most_event_bytes = most_event_bytes
        self._places: dict[Place, int] = {}
        self._header = b"%s %d %s\n" % (chunks.MAGIC, chunks.VERSION, json.dumps(asdict(metadata)).encode())
        self._lasting: list[tuple[int, int]] = []  # chunks that stay: definitions, steps
        self._latest: dict[bytes, tuple[int, int]] = {}  # of kinds that replace what came before
        self._events: list[list[_Kept]] = []  # chunks of events, in groups that stay or go together
        self._group: list[_Kept] = []
        self._event_bytes = self._outdated_bytes = 0
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0
        self._put(self._header)

    def define(self, new: Definitions) -> None:
        """Adds definitions; what refers to them is written later."""
        if not new:
            return
        places: list[Place] = []
        stacks = [[self._number(place, places) for place in stack] for stack in new.stacks]
        document = {
            "names": new.names,
            "places": list(map(chunks.json_ready, places)),
            "stacks": stacks,
            "graphs": list(map(chunks.json_ready, new.graphs)),
            "operators": list(map(chunks.json_ready, new.operators)),
        }
        self._lasting.append(self._chunk(chunks.DEFINITIONS, json.dumps(document, separators=(",", ":")).encode()))

    def add(self, table: str, columns: Sequence[array[int]]) -> None:
        """Adds rows to a table, or replaces the table where it is one of totals."""
        kind = chunks.TABLE_KINDS[table]
        described = chunks.TABLES[kind]
        rows = len(columns[0])
        if not rows and not described.replaces:
            return
        where = self._chunk(kind, chunks.table_payload(described, columns))
        if described.replaces:
            self._replace(kind, where)
        elif kind in _EVENTS:
            self._event(where, table, rows)
        else:
            self._lasting.append(where)

    def add_executions(self, columns: Sequence[array[int]], operator_ns: array[int]) -> None:
        """Adds executions with the times of their operators."""
        if not len(columns[0]):
            return
        self.add("executions", columns)
        where = self._chunk(chunks.OPERATOR_TIMES, chunks.integers_payload([operator_ns]))
        self._event(where, "operator_ns", len(operator_ns))

    def state(self, state: State) -> None:
        """Says how far the profile came; ends a group of events, and drops the oldest ones where there are too many."""
        if self._group:
            self._events.append(self._group)
            self._group = []
        if self._event_bytes > self._most_event_bytes:
            self._drop_half()
        elif self._outdated_bytes > self._most_event_bytes:
            self._write_anew()
        document = asdict(state)
        document["dropped"] = {**state.dropped, **self.dropped}
        self._replace(chunks.STATE, self._chunk(chunks.STATE, json.dumps(document).encode()))

    def close(self) -> None:
        """Closes the file; may be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _number(self, place: Place, new: list[Place]) -> int:
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = len(self._places)
            new.append(place)
        return number

    def _event(self, where: tuple[int, int], table: str, rows: int) -> None:
        self._group.append(_Kept(*where, table, rows))
        self._event_bytes += where[1]

    def _replace(self, kind: bytes, where: tuple[int, int]) -> None:
        self._outdated_bytes += self._latest.get(kind, (0, 0))[1]
        self._latest[kind] = where

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
            self._put(self._header)
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

    def _chunk(self, kind: bytes, payload: bytes) -> tuple[int, int]:
        data = chunks.chunk(kind, payload)
        begun = self._size
        try:
            self._put(data)
        except BaseException:
            self._take_back(begun)
            raise
        return begun, len(data)

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
