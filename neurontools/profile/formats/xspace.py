"""XSpace, the file of TensorBoard's Profile tab and of xprof: planes of lines of events, encoded by hand.

Field numbers are those of xla/tsl/profiler/protobuf/xplane.proto. Only a plane named /device:TPU:N gets xprof's tables,
so a NeuronCore has such a name there, and says what it is in its stats. Events have no group_id: with it, and a plane
of the host, xprof finds no steps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from neurontools.rpc.wire import append_varint, encode_bytes, encode_string, encode_uint

_PS = 1000
_EVENT, _STAT = b"\x22", b"\x22"  # the field `events` of a line, `stats` of an event: both are number 4

Stat = int | float | str


class Plane:
    """A plane that is being made; `encoded` is its bytes."""

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._lines: list[bytes] = []
        self._events: list[bytes] = []
        self._event_count = 0
        self._stat_ids: dict[str, int] = {}
        self._stats: list[bytes] = []
        self._by_name: dict[str, int] = {}

    def stat(self, name: str, value: Stat) -> bytes:
        """A stat as it is encoded, for events and their metadata."""
        number = self._stat_ids.setdefault(name, len(self._stat_ids) + 1)
        head = encode_uint(1, number)
        if isinstance(value, str):
            return head + encode_string(5, value)
        if isinstance(value, float):
            return head + b"\x11" + struct.pack("<d", value)
        return head + encode_uint(4, value & (1 << 64) - 1)  # signed, because readers of memory ask for that alone

    def set(self, **stats: Stat) -> None:
        """Stats of the plane itself."""
        self._stats += [self.stat(name, value) for name, value in stats.items()]

    def kind(self, name: str, display_name: str = "", **stats: Stat) -> int:
        """A kind of event, with what holds for all of them; its number."""
        self._event_count += 1
        parts = [encode_uint(1, self._event_count), encode_string(2, name)]
        if display_name:
            parts.append(encode_string(4, display_name))
        parts += [encode_bytes(5, self.stat(key, value)) for key, value in stats.items()]
        self._events.append(encode_uint(1, self._event_count) + encode_bytes(2, b"".join(parts)))
        return self._event_count

    def named(self, name: str) -> int:
        """The kind of event that has nothing but this name."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = self.kind(name)
        return found

    def line(self, number: int, name: str, base_ns: int, events: Iterable[bytes]) -> None:
        """Adds a line of events, which `event` made."""
        head = encode_uint(1, number) + encode_string(2, name) + encode_uint(3, base_ns)
        body = bytearray(head)
        for each in events:
            body += _EVENT
            append_varint(body, len(each))
            body += each
        self._lines.append(bytes(body))

    def encoded(self) -> bytes:
        """The whole plane."""
        names = [
            encode_bytes(5, encode_uint(1, number) + encode_bytes(2, encode_uint(1, number) + encode_string(2, name)))
            for name, number in self._stat_ids.items()
        ]
        return b"".join(
            [
                encode_uint(1, self._number),
                encode_string(2, self._name),
                *(encode_bytes(3, line) for line in self._lines),
                *(encode_bytes(4, event) for event in self._events),
                *names,
                *(encode_bytes(6, stat) for stat in self._stats),
            ]
        )


def event(kind: int, offset_ns: int, duration_ns: int, stats: Iterable[bytes] = ()) -> bytes:
    """An event of a line, from the line's time on."""
    made = bytearray(b"\x08")
    append_varint(made, kind)
    made += b"\x10"
    append_varint(made, max(0, offset_ns) * _PS)
    made += b"\x18"
    append_varint(made, max(0, duration_ns) * _PS)
    for stat in stats:
        made += _STAT
        append_varint(made, len(stat))
        made += stat
    return bytes(made)


def space(planes: Iterable[Plane], host: str, warnings: Iterable[str] = ()) -> bytes:
    """A file of these planes."""
    parts: list[Any] = [encode_bytes(1, plane.encoded()) for plane in planes]
    parts += [encode_string(3, warning) for warning in warnings]
    parts.append(encode_string(4, host))
    return b"".join(parts)
