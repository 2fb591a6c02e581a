"""Perfetto's messages as protobuf reads them, as far as our traces go; numbers and types from Perfetto's own protos."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from tests.harness.described_messages import message_class

MESSAGES = {
    "Trace": "packet 1 TracePacket+",
    "TracePacket": "timestamp 8 uint64; trusted_packet_sequence_id 10 uint32; track_event 11 TrackEvent; "
    "track_descriptor 60 TrackDescriptor; clock_snapshot 6 ClockSnapshot",
    "TrackDescriptor": "uuid 1 uint64; parent_uuid 5 uint64; name 2 string; description 14 string; "
    "process 3 ProcessDescriptor; counter 8 CounterDescriptor; child_ordering 11 uint32; sibling_order_rank 12 int32",
    "ProcessDescriptor": "pid 1 int32; cmdline 2 string+; process_name 6 string",
    "CounterDescriptor": "unit 3 uint32; unit_name 6 string",
    "TrackEvent": "type 9 uint32; track_uuid 11 uint64; name 23 string; categories 22 string+; "
    "double_counter_value 44 double; debug_annotations 4 DebugAnnotation+",
    "DebugAnnotation": "name 10 string; uint_value 3 uint64; string_value 6 string",
    "ClockSnapshot": "clocks 1 Clock+",
    "Clock": "clock_id 1 uint32; timestamp 2 uint64",
}
_TRACE = message_class(MESSAGES, "Trace")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
REALTIME, BOOTTIME = 1, 6


@dataclass
class Slice:
    track: str
    text: str
    begun_ns: int
    ended_ns: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Read:
    """A trace taken apart; tracks are named with those above them, `Host/memory in use`."""

    names: dict[int, str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    values: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    units: dict[str, str | int] = field(default_factory=dict)
    clocks: list[dict[int, int]] = field(default_factory=list)

    def value_at(self, track: str, at_ns: int) -> float:
        """What a counter shows at a time; NaN for nothing."""
        values = [value for when, value in self.values.get(track, ()) if when <= at_ns]
        return values[-1] if values else float("nan")


def packet_text(content: bytes) -> str:
    """The packets of a trace: a line for each track, and at its end the events up to the next track."""
    parts = []
    for packet in _TRACE.FromString(content).packet:
        parts += ["\n" if packet.HasField("track_descriptor") else " ", _text_of(packet)]
    return "".join(parts).strip() + "\n"


def _text_of(value: Any) -> str:
    if isinstance(value, str | int | float):
        return repr(value)
    if hasattr(value, "ListFields"):
        return f"{{{' '.join(f'{field.name}={_text_of(inner)}' for field, inner in value.ListFields())}}}"
    return " ".join(map(_text_of, value))


def read(content: bytes) -> Read:
    """Takes a trace apart, and checks on the way what every trace has to keep to."""
    found, opened, last_ns = Read(), dict[int, list[Slice]](), 0
    for packet in _TRACE.FromString(content).packet:
        assert not any(len(UnknownFieldSet(part)) for part in (packet, packet.track_event, packet.track_descriptor))
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in found.names
            above = f"{found.names[descriptor.parent_uuid]}/" if descriptor.parent_uuid else ""
            name = found.names[descriptor.uuid] = f"{above}{descriptor.name}"
            if descriptor.HasField("counter"):
                found.units[name] = descriptor.counter.unit or descriptor.counter.unit_name
        if packet.HasField("clock_snapshot"):
            found.clocks.append({clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks})
        if packet.HasField("track_event"):
            assert packet.trusted_packet_sequence_id
            assert packet.timestamp >= last_ns
            last_ns = packet.timestamp
            _take_event(found, opened, packet.timestamp, packet.track_event)
    assert not any(opened.values()), "slices that nothing ends"
    return found


def _take_event(found: Read, opened: dict[int, list[Slice]], at_ns: int, event: Any) -> None:
    track = found.names[event.track_uuid]
    if event.type == COUNTER:
        found.values.setdefault(track, []).append((at_ns, event.double_counter_value))
    elif event.type == END:
        opened[event.track_uuid].pop().ended_ns = at_ns
    else:
        notes = {each.name: each.string_value or each.uint_value for each in event.debug_annotations}
        added = Slice(track, event.name, at_ns, notes=notes)
        (found.slices if event.type == BEGIN else found.instants).append(added)
        if event.type == BEGIN:
            opened.setdefault(event.track_uuid, []).append(added)
