"""Tracks of a trace that is written as it comes: what is told in each moment becomes slices and curves.

In each moment everything that is known is told anew. What is as it was costs nothing, what has changed is a packet, and
what is told no more has ended: its slice does, and its curve has no value from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from neurontools.exporters.perfetto.packets import (
    Unit,
    begin_packet,
    clock_packet,
    counter_packet,
    end_packet,
    instant_packet,
    process_packet,
    timestamp_field,
    track_packet,
    value_packet,
    value_prefix,
)

_NS_PER_SECOND = 1e9
_NO_VALUE = float("nan")
_NO_NOTES: Mapping[str, str | int] = {}


class _Curve:
    """A counter: what its values begin with, the latest of them, and the moment in which it was told."""

    __slots__ = ("moment", "prefix", "value")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.value: float | None = None
        self.moment = 0


class _Slices:
    """A track of slices: what its open slice says, and the moment in which that was told."""

    __slots__ = ("moment", "text", "uuid")

    def __init__(self, uuid: int) -> None:
        self.uuid = uuid
        self.text: str | None = None
        self.moment = 0


class Tracks:
    """Collects the packets of a trace; `take` hands them over. Keys say which track is meant; texts are fit to show.

    `slice_count`, `value_count` and `instant_count` tell what is in the packets.
    """

    def __init__(self) -> None:
        self.slice_count = self.value_count = self.instant_count = 0
        self._packets: list[bytes] = []
        self._groups: dict[Hashable, int] = {}
        self._curves: dict[Hashable, _Curve] = {}
        self._slices: dict[Hashable, _Slices] = {}
        self._moment = 0
        self._at_ns = 0
        self._timestamp = b""
        self._last_uuid = 0

    def begin(self, at_seconds: float, at_unix_seconds: float | None = None) -> None:
        """A moment begins, later than the one before; with its time of day where that is to be told."""
        self._moment += 1
        self._go_to(at_seconds)
        if at_unix_seconds is not None:
            self._packets.append(clock_packet(self._at_ns, round(at_unix_seconds * _NS_PER_SECOND)))

    def group(self, key: Hashable, name: str, *, parent: int = 0, rank: int = 0, description: str = "") -> int:
        """The number of a track that others are below, made when it is first named."""
        uuid = self._groups.get(key)
        if uuid is None:
            uuid = self._groups[key] = self._new_uuid()
            self._packets.append(track_packet(uuid, name, parent=parent, rank=rank, description=description))
        return uuid

    def process(self, key: Hashable, pid: int, name: str, command: str) -> int:
        """The same of a process."""
        uuid = self._groups.get(key)
        if uuid is None:
            uuid = self._groups[key] = self._new_uuid()
            self._packets.append(process_packet(uuid, pid, name, command))
        return uuid

    def has(self, key: Hashable) -> bool:
        """Whether there is such a counter by now."""
        return key in self._curves

    def value(
        self,
        key: Hashable,
        value: float | None,
        name: str,
        unit: Unit | str,
        *,
        parent: int = 0,
        rank: int = 0,
        description: str = "",
    ) -> None:
        """What a counter shows in this moment; None: it is not known."""
        if value is None:
            return
        curve = self._curves.get(key)
        if curve is None:
            uuid = self._new_uuid()
            self._packets.append(counter_packet(uuid, name, unit, parent=parent, rank=rank, description=description))
            curve = self._curves[key] = _Curve(value_prefix(uuid))
        curve.moment = self._moment
        if curve.value != value:
            curve.value = value
            self.value_count += 1
            self._packets.append(value_packet(self._timestamp, curve.prefix, value))

    def lasting(
        self,
        key: Hashable,
        text: str,
        category: str,
        notes: Mapping[str, str | int] = _NO_NOTES,
        *,
        track: str = "",
        parent: int = 0,
        rank: int = 0,
    ) -> None:
        """What holds in this moment; a slice for as long as it is told with the same text.

        It lies on a track of its own, or on the group of this key where there is one.
        """
        slices = self._slices.get(key)
        if slices is None:
            uuid = self._groups.get(key) or self.group(key, track, parent=parent, rank=rank)
            slices = self._slices[key] = _Slices(uuid)
        slices.moment = self._moment
        if slices.text != text:
            if slices.text is not None:
                self._packets.append(end_packet(self._at_ns, slices.uuid))
            slices.text = text
            self.slice_count += 1
            self._packets.append(begin_packet(self._at_ns, slices.uuid, text, category, notes))

    def instant(self, track: int, text: str, category: str, notes: Mapping[str, str | int] = _NO_NOTES) -> None:
        """Something happened."""
        self.instant_count += 1
        self._packets.append(instant_packet(self._at_ns, track, text, category, notes))

    def end(self) -> None:
        """The moment ends, and with it all that wasn't told in it."""
        for slices in self._slices.values():
            if slices.text is not None and slices.moment != self._moment:
                slices.text = None
                self._packets.append(end_packet(self._at_ns, slices.uuid))
        for curve in self._curves.values():
            if curve.value is not None and curve.moment != self._moment:
                curve.value = None
                self._packets.append(value_packet(self._timestamp, curve.prefix, _NO_VALUE))

    def end_all(self, at_seconds: float) -> None:
        """Nothing is known from then on."""
        self._moment += 1
        self._go_to(at_seconds)
        self.end()

    def take(self) -> bytes:
        """The packets since the last time."""
        packets = b"".join(self._packets)
        self._packets.clear()
        return packets

    def _go_to(self, at_seconds: float) -> None:
        self._at_ns = max(self._at_ns, round(at_seconds * _NS_PER_SECOND))
        self._timestamp = timestamp_field(self._at_ns)

    def _new_uuid(self) -> int:
        self._last_uuid += 1
        return self._last_uuid
