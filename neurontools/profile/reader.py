"""Reads profiles: one file, or all files in a directory. Files may be truncated, damaged, or not profiles at all."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zlib
from array import array
from pathlib import Path
from typing import Any, TypeVar

from neurontools.driver.processes import user_name
from neurontools.profile import chunks
from neurontools.profile.chunks import SUFFIX, DamagedProfile
from neurontools.profile.definitions import (
    CATEGORIES,
    Engine,
    GraphDefinition,
    OperatorDefinition,
    ProfileMetadata,
    ProfileState,
    SourceLine,
    SpanKind,
)
from neurontools.profile.profile import ColumnTable, Profile
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_PERMISSION, UserError
from neurontools.util.terminal import escape_controls

MAX_FILE_BYTES = 1 << 30
_MAX_UNPACKED_BYTES = 1 << 30
_MAX_HEADER_BYTES = 64 << 10
_MAX_DEFINITIONS = 1 << 22
_MAX_WORKERS = 4096
T = TypeVar("T", ProfileMetadata, ProfileState)
_NEXT_STEP = "give a directory that neuron-run --profile wrote"


def read_profile(
    path: str | os.PathLike[str], *, most_unpacked_bytes: int = _MAX_UNPACKED_BYTES, directory: int | None = None
) -> Profile:
    """Reads the profile in a file; raises UserError if the file is unreadable or not a profile.

    Reads a truncated or damaged file up to the first bad chunk, and sets `is_damaged`. Data that is larger after
    unpacking than `most_unpacked_bytes` counts as damaged. With the descriptor of a directory, `path` is the name of a
    file in it, and no link.
    """
    name = escape_controls(os.fspath(path))
    # Opening a pipe without a writer would block, and reading a device would never end.
    more_flags = os.O_NONBLOCK if directory is None else os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | more_flags, dir_fd=directory)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{name}: no regular file; {_NEXT_STEP}")
            size, uid = status.st_size, status.st_uid
            if size > MAX_FILE_BYTES:
                raise UserError(f"{name}: {size} bytes are more than a profile has; {_NEXT_STEP}")
            data = file.read(size)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise _refusal(name, path, directory) from None
        raise UserError(f"{name}: {error.strerror}; {_NEXT_STEP}") from None
    try:
        metadata, header_size = _parse_header(data)
    except DamagedProfile as error:
        raise UserError(f"{name}: {error}; {_NEXT_STEP}") from None
    reader = _ChunkReader(metadata, most_unpacked_bytes)
    is_damaged = False
    try:
        reader.read_chunks(data, header_size)
    except DamagedProfile:
        is_damaged = True
    try:
        return reader.build_profile(is_damaged, None if uid == os.geteuid() else user_name(uid))
    except DamagedProfile as error:
        raise UserError(f"{name}: damaged: {error}; make the profile again") from None


def _refusal(name: str, path: str | os.PathLike[str], directory: int | None = None) -> UserError:
    """Returns the error for a path that this user may not read. It names the owner of the path, else of its parent."""
    whose = "not permitted; ask its owner"
    for each in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):
            owner = user_name(os.stat(each, dir_fd=directory, follow_symlinks=directory is None).st_uid)
            whose = f"not permitted, it belongs to user {owner}; ask {owner}"
            break
    return UserError(f"{name}: {whose} for read access", EXIT_PERMISSION)


def _parse_header(data: bytes) -> tuple[ProfileMetadata, int]:
    if not data.startswith(chunks.MAGIC + b" "):
        raise DamagedProfile("not a profile")
    end = data.find(b"\n", 0, _MAX_HEADER_BYTES)
    if end < 0:
        raise DamagedProfile("a profile that ends in its first line")
    version, _, text = data[len(chunks.MAGIC) + 1 : end].partition(b" ")
    if version not in {b"%d" % number for number in range(chunks.OLDEST_VERSION, chunks.VERSION + 1)}:
        raise DamagedProfile(
            f"a profile of another version ({escape_controls(version[:20].decode('ascii', 'replace'))})"
        )
    return _parse_known_fields(text, ProfileMetadata, "a first line"), end + 1


class _ChunkReader:
    def __init__(self, metadata: ProfileMetadata, most_unpacked_bytes: int) -> None:
        self.metadata = metadata
        self._most_unpacked_bytes = most_unpacked_bytes
        self.state = ProfileState()
        self.names: list[str] = []
        self.places: list[SourceLine] = []
        self.stacks: list[tuple[SourceLine, ...]] = []
        self.graphs: list[GraphDefinition] = []
        self.operators: list[OperatorDefinition] = []
        self.operator_ns = array("q")
        self.tables: dict[str, ColumnTable[Any]] = {
            kind.field: ColumnTable(kind.row) for kind in chunks.TABLES.values()
        }
        self._unpacked_bytes = 0

    def read_chunks(self, data: bytes, position: int) -> None:
        """Reads all chunks from a position on; raises DamagedProfile at the first bad chunk."""
        header = chunks.HEADER
        while position < len(data):
            if len(data) - position < header.size:
                raise DamagedProfile("the file ends in the middle of a chunk")
            kind, size, unpacked_size, checksum = header.unpack_from(data, position)
            position += header.size
            packed = data[position : position + size]
            position += size
            if len(packed) != size or zlib.crc32(kind + packed) != checksum:
                raise DamagedProfile("the file ends in the middle of a chunk")
            self._unpacked_bytes += unpacked_size
            if self._unpacked_bytes > self._most_unpacked_bytes:
                raise DamagedProfile("more data than a profile has")
            self._read_chunk(kind, chunks.unpack_chunk(packed, unpacked_size))

    def _read_chunk(self, kind: bytes, payload: bytes) -> None:
        if kind == chunks.DEFINITIONS:
            self._read_definitions(payload)
        elif kind == chunks.STATE:
            self.state = _parse_known_fields(payload, ProfileState, "a state")
        elif kind == chunks.OPERATOR_TIMES:
            self.operator_ns.extend(chunks.decode_columns(payload, 1)[0])
        elif kind in chunks.TABLES:
            described = chunks.TABLES[kind]
            columns = chunks.decode_table(described, payload)
            if described.replaces:
                self.tables[described.field] = ColumnTable(described.row, columns)
            else:
                self.tables[described.field].extend(columns)

    def _read_definitions(self, payload: bytes) -> None:
        try:
            document = json.loads(payload)
            names = [str(name) for name in document["names"]]
            places = [SourceLine(*parts[: len(SourceLine.__slots__)]) for parts in document["places"]]
            graphs = [GraphDefinition(*parts[: len(GraphDefinition.__slots__)]) for parts in document["graphs"]]
            operators = [
                OperatorDefinition(graph, position, name, Engine(engine), *map(_frozen, rest))
                for graph, position, name, engine, *rest in (
                    parts[: len(OperatorDefinition.__slots__)] for parts in document["operators"]
                )
            ]
            for kind, values in ((SourceLine, places), (GraphDefinition, graphs), (OperatorDefinition, operators)):
                for value in values:
                    _check_types(value, kind)
            self.places += places
            stacks = [tuple(self.places[_check_index(number)] for number in stack) for stack in document["stacks"]]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise DamagedProfile(f"definitions that can't be read ({type(error).__name__})") from None
        self.names += names
        self.stacks += stacks
        self.graphs += graphs
        self.operators += operators
        listed: tuple[list[Any], ...] = (self.names, self.places, self.stacks, self.graphs, self.operators)
        if max(map(len, listed)) > _MAX_DEFINITIONS:
            raise DamagedProfile("more definitions than a profile has")

    def build_profile(self, is_damaged: bool, owner: str | None) -> Profile:
        """Returns the profile; raises DamagedProfile if a reference has no target."""
        tables = self.tables
        timed = sum(tables["executions"].column("operator_count"))
        if timed > len(self.operator_ns):  # the file ended before the chunk with the operators' times
            self._drop_untimed_executions()
            is_damaged = True
        elif timed < len(self.operator_ns):
            raise DamagedProfile("times of operators that belong to no execution")
        self._check_references()
        return Profile(
            metadata=self.metadata,
            state=self.state,
            names=tuple(self.names),
            stacks=tuple(self.stacks),
            graphs=tuple(self.graphs),
            operators=tuple(self.operators),
            operator_ns=self.operator_ns,
            is_damaged=is_damaged,
            owner=owner,
            **tables,
        )

    def _drop_untimed_executions(self) -> None:
        table = self.tables["executions"]
        rest, whole = len(self.operator_ns), 0
        for count in table.column("operator_count"):
            if count > rest:
                break
            rest -= count
            whole += 1
        self.tables["executions"] = table[:whole]
        del self.operator_ns[len(self.operator_ns) - rest :]

    def _check_references(self) -> None:
        names, stacks = len(self.names), len(self.stacks)
        graphs, operators = len(self.graphs), len(self.operators)
        for table, column, least, end in (
            ("executions", "graph", 0, graphs),
            ("executions", "reason", 0, names),
            ("executions", "operator_count", 0, operators + 1),
            ("spans", "kind", 0, len(SpanKind)),
            ("spans", "name", 0, names),
            ("spans", "stack", -1, stacks),
            ("allocations", "action", 0, 2),
            ("allocations", "category", 0, len(CATEGORIES)),
            ("allocations", "stack", -1, stacks),
            ("blocks", "category", 0, len(CATEGORIES)),
            ("blocks", "stack", -1, stacks),
            ("graph_totals", "graph", 0, graphs),
            ("operator_totals", "operator", 0, operators),
            ("span_totals", "kind", 0, len(SpanKind)),
            ("span_totals", "name", 0, names),
        ):
            values = self.tables[table].column(column)
            if values and not least <= min(values) <= max(values) < end:
                raise DamagedProfile(f"{table} with a {column} that isn't there")
        executions = self.tables["executions"]
        for number, count in set(zip(executions.column("graph"), executions.column("operator_count"), strict=True)):
            if count not in (0, self.graphs[number].operator_count):
                raise DamagedProfile("an execution of more operators than its graph has")
        expected = 0
        for graph in self.graphs:
            if graph.first_operator != expected or not 0 <= graph.operator_count <= operators - expected:
                raise DamagedProfile("a graph whose operators aren't there")
            expected += graph.operator_count
            if graph.stack is not None and not 0 <= graph.stack < stacks:
                raise DamagedProfile("a graph with a stack that isn't there")
        for operator in self.operators:
            if len(operator.peers) != len(operator.sent_bytes):
                raise DamagedProfile("an operator that sends data to unknown ranks")
            if not 0 <= operator.graph < graphs or (operator.stack is not None and not 0 <= operator.stack < stacks):
                raise DamagedProfile("an operator with a graph or stack that isn't there")


def _parse_known_fields(text: bytes, kind: type[T], section: str) -> T:
    """Builds a `kind` from a JSON document, and ignores unknown fields; raises DamagedProfile for invalid ones."""
    try:
        document = json.loads(text)
        known: dict[str, Any] = {key: found for key, found in document.items() if key in kind.__slots__}
        for key, found in known.items():
            known[key] = _frozen(found)
        value = kind(**known)
        _check_types(value, kind)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedProfile(f"{section} that can't be read ({type(error).__name__})") from None
    return value


_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
    "Engine": Engine,
}


def _check_types(value: Any, kind: type[Any]) -> None:
    """Raises TypeError unless all fields have their annotated types and all integers fit in 64 bits."""
    for name, annotation in kind.__annotations__.items():
        found = getattr(value, name)
        if annotation == "tuple[int, ...]":
            parts = list(found)
        elif annotation == "dict[str, int]":
            parts = list(found.values())
        else:
            if not isinstance(found, _TYPES[annotation]):
                raise TypeError(name)
            parts = [found] if isinstance(found, int) else []
        for part in parts:
            if not isinstance(part, int) or not -(1 << 63) <= part < 1 << 63:
                raise TypeError(name)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_index(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise TypeError(number)
    return number


def profile_paths(where: str | os.PathLike[str]) -> list[Path]:
    """Returns the profiles in a directory, or the file itself; raises UserError if there is none."""
    path = Path(where)
    name = escape_controls(os.fspath(where))
    try:
        if path.is_file():
            return [path]
        found = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIX) and each.name[0] != ".")
    except PermissionError:
        raise _refusal(name, path) from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; {_NEXT_STEP}", EXIT_NOT_FOUND) from None
    if not found:
        raise UserError(
            f"{name}: no profile in it; make one with neuron-run --profile {name} script.py", EXIT_NOT_FOUND
        )
    if len(found) > _MAX_WORKERS:
        raise UserError(f"{name}: {len(found)} profiles are more than {_MAX_WORKERS}; give one of them")
    return found


def read_directory(where: str | os.PathLike[str]) -> list[Profile]:
    """Reads the profiles of a directory, ordered by rank, or a single file; raises UserError if one is unreadable."""
    profiles = [read_profile(path) for path in profile_paths(where)]
    return sorted(profiles, key=lambda each: (each.metadata.rank, each.metadata.host, each.metadata.pid))
