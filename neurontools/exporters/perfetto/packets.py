"""Packets of a Perfetto trace: tracks, slices, instants and counters, each encoded by itself.

A trace is nothing but its packets one after the other, so a file can be written as they come.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum

from neurontools.rpc.wire import append_varint, encode_bytes, encode_string, encode_uint

_PACKET = 1  # of Trace
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _TRACK_DESCRIPTOR, _CLOCK_SNAPSHOT = 8, 10, 11, 60, 6  # of TracePacket
_REALTIME, _BOOTTIME = 1, 6  # of BuiltinClock; timestamps are of BOOTTIME where a packet says nothing else
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # of TrackEvent.Type
_EXPLICIT = 3  # of ChildTracksOrdering
_OF_ONE_SEQUENCE = encode_uint(_SEQUENCE, 1)  # Perfetto takes events only from a sequence that is told
_DOUBLE_COUNTER_VALUE = bytes((0xE1, 0x02))  # the tag of field 44, fixed64
_double = struct.Struct("<d").pack


class Unit(IntEnum):
    """What a counter counts, as Perfetto has it; anything else has a name of its own."""

    COUNT = 2
    BYTES = 3


def clock_packet(at_ns: int, at_unix_ns: int) -> bytes:
    """Which time of day a moment of the trace was."""
    clocks = b"".join(
        encode_bytes(1, encode_uint(1, clock) + encode_uint(2, time))
        for clock, time in ((_BOOTTIME, at_ns), (_REALTIME, at_unix_ns))
    )
    return _packet(encode_uint(_TIMESTAMP, at_ns) + encode_bytes(_CLOCK_SNAPSHOT, clocks))


def track_packet(uuid: int, name: str, *, parent: int = 0, rank: int = 0, description: str = "") -> bytes:
    """A track for slices and instants, or one that only has tracks below it, which are ordered by rank."""
    return _descriptor(_place(uuid, name, parent, rank, description))


def process_packet(uuid: int, pid: int, name: str, command: str) -> bytes:
    """The track of a process, with those below it."""
    process = encode_uint(1, pid) + encode_string(2, command) + encode_string(6, name)
    return _descriptor(_place(uuid, name) + encode_bytes(3, process))


def counter_packet(
    uuid: int, name: str, unit: Unit | str, *, parent: int = 0, rank: int = 0, description: str = ""
) -> bytes:
    """A track of numbers. Those of one parent and one unit share the scale."""
    counter = encode_uint(3, unit) if isinstance(unit, Unit) else encode_string(6, unit)
    return _descriptor(_place(uuid, name, parent, rank, description) + encode_bytes(8, counter))


def begin_packet(at_ns: int, track: int, name: str, category: str, notes: Mapping[str, str | int]) -> bytes:
    """A slice begins; it lasts until `end_packet`, and slices of a track lie within each other."""
    return _named(_BEGIN, at_ns, track, name, category, notes)


def end_packet(at_ns: int, track: int) -> bytes:
    """The slice that began last on this track ends."""
    return _event(at_ns, encode_uint(9, _END) + encode_uint(11, track))


def instant_packet(at_ns: int, track: int, name: str, category: str, notes: Mapping[str, str | int]) -> bytes:
    """Something that took no time."""
    return _named(_INSTANT, at_ns, track, name, category, notes)


def value_prefix(track: int) -> bytes:
    """What all values of one counter have in common, for `value_packet`."""
    return encode_uint(9, _COUNTER) + encode_uint(11, track) + _DOUBLE_COUNTER_VALUE


def value_packet(timestamp: bytes, prefix: bytes, value: float) -> bytes:
    """A value of a counter from now on; `timestamp` as `timestamp_field` has it, the same for all of one moment."""
    event = prefix + _double(value)
    return _packet(timestamp + encode_bytes(_TRACK_EVENT, event))


def timestamp_field(at_ns: int) -> bytes:
    """The beginning of every event of one moment."""
    return encode_uint(_TIMESTAMP, at_ns) + _OF_ONE_SEQUENCE


def _named(kind: int, at_ns: int, track: int, name: str, category: str, notes: Mapping[str, str | int]) -> bytes:
    event = encode_uint(9, kind) + encode_uint(11, track) + encode_string(22, category) + encode_string(23, name)
    for key, value in notes.items():
        told = encode_string(6, value) if isinstance(value, str) else encode_uint(3, value)
        event += encode_bytes(4, encode_string(10, key) + told)
    return _event(at_ns, event)


def _event(at_ns: int, event: bytes) -> bytes:
    return _packet(timestamp_field(at_ns) + encode_bytes(_TRACK_EVENT, event))


def _place(uuid: int, name: str, parent: int = 0, rank: int = 0, description: str = "") -> bytes:
    place = encode_uint(1, uuid) + encode_string(2, name) + encode_uint(11, _EXPLICIT) + encode_uint(12, rank)
    if parent:
        place += encode_uint(5, parent)
    return place + encode_string(14, description) if description else place


def _descriptor(fields: bytes) -> bytes:
    return _packet(_OF_ONE_SEQUENCE + encode_bytes(_TRACK_DESCRIPTOR, fields))


def _packet(fields: bytes) -> bytes:
    packet = bytearray((_PACKET << 3 | 2,))
    append_varint(packet, len(fields))
    return bytes(packet + fields)
