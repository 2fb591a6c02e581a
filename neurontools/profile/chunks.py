"""The format of a worker's file, `*.neuronprofile`: a header line, then chunks with checksums.

    NEURONPROFILE 2 {metadata}\\n
    a chunk: kind (1 byte), size (4), unpacked size (4), CRC-32 of kind and stream (4), the zlib stream

Numbers are little-endian. A chunk of kind D has further definitions as JSON: names, places, stacks, graphs, operators.
A chunk of kind S has the state, which replaces the previous one. All other chunks are tables: the number of rows, then
the columns as 64-bit integers. A column stores the lowest bytes of all its numbers first, then the next bytes, which
compresses to a third. Events and steps extend their table; totals and blocks replace it.

Readers skip chunks of unknown kinds, unknown fields of the metadata and the state, and further parts at the end of a
definition, so that such additions need no new version. Files of version 1 lack the bytes that an operator sends to its
peers; their readers took further parts of a definition for damage, hence version 2.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, sub
from typing import Any, NamedTuple

from neurontools.profile.profile import (
    Allocation,
    Block,
    GraphExecution,
    GraphTotal,
    MemoryLevels,
    OperatorTotal,
    Span,
    SpanTotal,
    TrainingStep,
)

MAGIC = b"NEURONPROFILE"
VERSION = 2
OLDEST_VERSION = 1
SUFFIX = ".neuronprofile"
HEADER = struct.Struct("<cIII")
MOST_CHUNK_BYTES = 64 << 20
"""The maximum size of an unpacked chunk; writers make far smaller ones."""
DEFINITIONS, STATE, OPERATOR_TIMES = b"D", b"S", b"O"
_ROWS = struct.Struct("<I")
_LITTLE = sys.byteorder == "little"


class DamagedProfile(ValueError):
    """The file violates the format; the text states how."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The encoding of a table: its field in `Profile`, and whether a chunk replaces the table or extends it.

    `growing` names a column stored as differences between rows. `after` lists pairs of columns: the first column is
    stored as differences from the second.
    """

    field: str
    row: type[NamedTuple]
    replaces: bool = False
    growing: str = ""
    after: tuple[tuple[str, str], ...] = ()


TABLES: dict[bytes, TableFormat] = {
    b"T": TableFormat("steps", TrainingStep, growing="start_ns", after=(("end_ns", "start_ns"),)),
    b"X": TableFormat(
        "executions",
        GraphExecution,
        growing="start_ns",
        after=(("queued_ns", "start_ns"), ("end_ns", "start_ns")),
    ),
    b"P": TableFormat("spans", Span, growing="start_ns", after=(("end_ns", "start_ns"),)),
    b"M": TableFormat("memory_levels", MemoryLevels, growing="time_ns"),
    b"A": TableFormat("allocations", Allocation, growing="time_ns"),
    b"B": TableFormat("blocks", Block, replaces=True),
    b"g": TableFormat("graph_totals", GraphTotal, replaces=True),
    b"o": TableFormat("operator_totals", OperatorTotal, replaces=True),
    b"p": TableFormat("span_totals", SpanTotal, replaces=True),
}
TABLE_KINDS = {table.field: kind for kind, table in TABLES.items()}


def pack_chunk(kind: bytes, payload: bytes, level: int = 3) -> bytes:
    packed = zlib.compress(payload, level)
    return HEADER.pack(kind, len(packed), len(payload), zlib.crc32(kind + packed)) + packed


def unpack_chunk(packed: bytes, size: int) -> bytes:
    """Decompresses a chunk; raises DamagedProfile unless the content has exactly `size` bytes."""
    if size > MOST_CHUNK_BYTES:
        raise DamagedProfile(f"a chunk of {size} bytes")
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise DamagedProfile(str(error)) from None
    if len(content) != size or not stream.eof:
        raise DamagedProfile("a chunk of another size than it says")
    return content


def encode_table(kind: TableFormat, columns: Sequence[array[int]]) -> bytes:
    fields = kind.row._fields
    coded = list(columns)
    for name, base in kind.after:
        coded[fields.index(name)] = _differences(columns[fields.index(name)], columns[fields.index(base)])
    if kind.growing:
        at = fields.index(kind.growing)
        coded[at] = array("q", map(sub, columns[at], array("q", [0]) + columns[at][:-1]))
    return encode_columns(coded)


def decode_table(kind: TableFormat, payload: bytes) -> list[array[int]]:
    """Decodes the columns of a table; raises DamagedProfile if the content doesn't fit the format."""
    fields = kind.row._fields
    columns = decode_columns(payload, len(fields))
    try:
        if kind.growing:
            at = fields.index(kind.growing)
            columns[at] = array("q", accumulate(columns[at]))
        for name, base in kind.after:
            at = fields.index(name)
            columns[at] = array("q", map(add, columns[at], columns[fields.index(base)]))
    except OverflowError:
        raise DamagedProfile("a time beyond 64 bits") from None
    return columns


def encode_columns(columns: Sequence[array[int]]) -> bytes:
    """Encodes columns of 64-bit integers, all of one length."""
    return _ROWS.pack(len(columns[0])) + b"".join(map(_interleave_bytes, columns))


def decode_columns(payload: bytes, count: int) -> list[array[int]]:
    """Decodes columns; raises DamagedProfile unless the content has exactly `count` columns."""
    if len(payload) < _ROWS.size:
        raise DamagedProfile("a table without its size")
    (rows,) = _ROWS.unpack_from(payload)
    if len(payload) != _ROWS.size + rows * count * 8:
        raise DamagedProfile("a table of another size than it says")
    size = rows * 8
    return (
        [_join_bytes(payload[at : at + size]) for at in range(_ROWS.size, len(payload), size)]
        if rows
        else [array("q") for _ in range(count)]
    )


def _differences(column: array[int], base: array[int]) -> array[int]:
    return array("q", map(sub, column, base))


def _interleave_bytes(column: array[int]) -> bytes:
    data = _to_little_endian(column).tobytes()
    return b"".join(data[number::8] for number in range(8))


def _join_bytes(data: bytes) -> array[int]:
    rows = len(data) // 8
    whole = bytearray(len(data))
    for number in range(8):
        whole[number::8] = data[number * rows : (number + 1) * rows]
    column = array("q")
    column.frombytes(whole)
    return _to_little_endian(column)


def _to_little_endian(column: array[int]) -> array[int]:
    if _LITTLE:
        return column
    swapped = array("q", column)
    swapped.byteswap()
    return swapped


def field_values(value: Any) -> list[Any]:
    """Returns the fields of a definition in their order, ready for JSON."""
    return [getattr(value, name) for name in value.__slots__]
