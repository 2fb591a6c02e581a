"""Perfetto traces of snapshots: a track for each core, process, counter and finding.

A trace is a sequence of independent packets, so a file can be written incrementally. Only values that change become
packets. A value that is missing in a snapshot ends its slice or counter.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from neurontools.client.events import HostEvent
from neurontools.model import (
    Device,
    Finding,
    LogicalNeuronCore,
    Process,
    Snapshot,
    SourceKind,
    logical_cores,
    memory_categories,
    sum_device_memory,
)
from neurontools.model.jobs import Rank, running_jobs
from neurontools.rpc.wire import append_varint, encode_bytes, encode_string, encode_uint
from neurontools.util.process_text import script_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import ranges_text, sum_known

_PACKET = 1  # field of Trace
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _TRACK_DESCRIPTOR, _CLOCK_SNAPSHOT = 8, 10, 11, 60, 6  # fields of TracePacket
_REALTIME, _BOOTTIME = 1, 6  # values of Perfetto's BuiltinClock; timestamps are BOOTTIME by default
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # values of Perfetto's TrackEvent.Type
_EXPLICIT = 3  # value of Perfetto's ChildTracksOrdering
_OF_ONE_SEQUENCE = encode_uint(_SEQUENCE, 1)  # Perfetto ignores events without a sequence id
_DOUBLE_COUNTER_VALUE = bytes((0xE1, 0x02))  # protobuf tag of field 44, wire type fixed64
_double = struct.Struct("<d").pack


_NS_PER_SECOND = 1e9
_NO_NOTES: Mapping[str, str | int] = {}
_GAP_PAUSES = 2.5  # a pause is a gap if it exceeds this multiple of the previous pause and of the interval
_LONGEST_TEXT = 200
_LONGEST_COMMAND = 4000


class CounterUnit(IntEnum):
    """Perfetto's predefined counter units; any other unit is a string."""

    COUNT = 2
    BYTES = 3


def _clock_packet(at_ns: int, at_unix_ns: int) -> bytes:
    """Encodes the time of day (Unix time) that corresponds to a time of the trace."""
    clocks = b"".join(
        encode_bytes(1, encode_uint(1, clock) + encode_uint(2, time))
        for clock, time in ((_BOOTTIME, at_ns), (_REALTIME, at_unix_ns))
    )
    return _packet(encode_uint(_TIMESTAMP, at_ns) + encode_bytes(_CLOCK_SNAPSHOT, clocks))


def _event_packet(
    timestamp: bytes, kind: int, track: int, name: str, category: str, notes: Mapping[str, str | int]
) -> bytes:
    """Encodes the start of a slice, or an event without duration."""
    event = encode_uint(9, kind) + encode_uint(11, track) + encode_string(22, category) + encode_string(23, name)
    for key, value in notes.items():
        encoded = encode_string(6, value) if isinstance(value, str) else encode_uint(3, value)
        event += encode_bytes(4, encode_string(10, key) + encoded)
    return _packet(timestamp + encode_bytes(_TRACK_EVENT, event))


def _end_packet(timestamp: bytes, track: int) -> bytes:
    return _packet(timestamp + encode_bytes(_TRACK_EVENT, encode_uint(9, _END) + encode_uint(11, track)))


def _value_packet(timestamp: bytes, prefix: bytes, value: float) -> bytes:
    return _packet(timestamp + encode_bytes(_TRACK_EVENT, prefix + _double(value)))


def _track_packet(uuid: int, name: str, parent: int, rank: int, more_fields: bytes) -> bytes:
    """Encodes the descriptor of a track; `rank` is its position in the parent, `more_fields` are encoded fields."""
    fields = encode_uint(1, uuid) + encode_string(2, name) + encode_uint(11, _EXPLICIT) + encode_uint(12, rank)
    if parent:
        fields += encode_uint(5, parent)
    return _packet(_OF_ONE_SEQUENCE + encode_bytes(_TRACK_DESCRIPTOR, fields + more_fields))


def _packet(fields: bytes) -> bytes:
    packet = bytearray((_PACKET << 3 | 2,))
    append_varint(packet, len(fields))
    return bytes(packet + fields)


@dataclass(slots=True)
class _CounterTrack:
    prefix: bytes  # the fields that all packets of the counter begin with
    value: float | None = None  # the latest value
    moment: int = 0  # number of the latest snapshot that set a value


@dataclass(slots=True)
class _SliceTrack:
    uuid: int
    text: str | None = None  # text of the open slice
    moment: int = 0  # number of the latest snapshot that set a text


class TraceTracks:
    """Collects the packets of a trace until `drain_packets` returns them. Callers identify tracks by keys.

    Texts must be printable. `slice_count`, `value_count` and `instant_count` count the contents of all packets.
    """

    def __init__(self) -> None:
        self.slice_count = self.value_count = self.instant_count = 0
        self._packets: list[bytes] = []
        self._groups: dict[Hashable, int] = {}
        self._counters: dict[Hashable, _CounterTrack] = {}
        self._slices: dict[Hashable, _SliceTrack] = {}
        self._moment = 0
        self._at_ns = 0
        self._timestamp = b""
        self._last_uuid = 0

    def begin_snapshot(self, at_seconds: float, at_unix_seconds: float | None = None) -> None:
        """Begins a snapshot, which must be later than the previous one.

        Adds a clock packet if `at_unix_seconds` is given.
        """
        self._moment += 1
        self._set_time(at_seconds)
        if at_unix_seconds is not None:
            self._packets.append(_clock_packet(self._at_ns, round(at_unix_seconds * _NS_PER_SECOND)))

    def group(self, key: Hashable, name: str, *, parent: int = 0, rank: int = 0, more_fields: bytes = b"") -> int:
        """Returns the id of a group of tracks; creates the group at its first use.

        `more_fields` are encoded fields of Perfetto's TrackDescriptor.
        """
        uuid = self._groups.get(key)
        if uuid is None:
            uuid = self._groups[key] = self._new_uuid()
            self._packets.append(_track_packet(uuid, name, parent, rank, more_fields))
        return uuid

    def has_counter(self, key: Hashable) -> bool:
        return key in self._counters

    def set_counter(
        self,
        key: Hashable,
        value: float | None,
        name: str,
        unit: CounterUnit | str,
        *,
        parent: int = 0,
        rank: int = 0,
    ) -> None:
        """Sets the value of a counter in this snapshot; None is unknown. Creates the counter at its first use.

        Counters with the same parent and unit share a scale.
        """
        if value is None:
            return
        counter = self._counters.get(key)
        if counter is None:
            uuid = self._new_uuid()
            scale = encode_uint(3, unit) if isinstance(unit, CounterUnit) else encode_string(6, unit)
            self._packets.append(_track_packet(uuid, name, parent, rank, encode_bytes(8, scale)))
            prefix = encode_uint(9, _COUNTER) + encode_uint(11, uuid) + _DOUBLE_COUNTER_VALUE
            counter = self._counters[key] = _CounterTrack(prefix)
        counter.moment = self._moment
        if counter.value != value:
            counter.value = value
            self.value_count += 1
            self._packets.append(_value_packet(self._timestamp, counter.prefix, value))

    def set_slice(
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
        """Sets the text of a track's open slice. The slice lasts while snapshots set the same text.

        If a group has this key, the slice is on the group's track, otherwise on a track of its own.
        """
        slices = self._slices.get(key)
        if slices is None:
            uuid = self._groups.get(key) or self.group(key, track, parent=parent, rank=rank)
            slices = self._slices[key] = _SliceTrack(uuid)
        slices.moment = self._moment
        if slices.text != text:
            if slices.text is not None:
                self._packets.append(_end_packet(self._timestamp, slices.uuid))
            slices.text = text
            self.slice_count += 1
            self._packets.append(_event_packet(self._timestamp, _BEGIN, slices.uuid, text, category, notes))

    def add_instant(self, track: int, text: str, category: str, notes: Mapping[str, str | int] = _NO_NOTES) -> None:
        """Adds an event without duration."""
        self.instant_count += 1
        self._packets.append(_event_packet(self._timestamp, _INSTANT, track, text, category, notes))

    def end(self) -> None:
        """Ends the snapshot; also ends all slices and counters that the snapshot did not set."""
        for slices in self._slices.values():
            if slices.text is not None and slices.moment != self._moment:
                slices.text = None
                self._packets.append(_end_packet(self._timestamp, slices.uuid))
        for counter in self._counters.values():
            if counter.value is not None and counter.moment != self._moment:
                counter.value = None
                self._packets.append(_value_packet(self._timestamp, counter.prefix, float("nan")))

    def end_all(self, at_seconds: float) -> None:
        self._moment += 1
        self._set_time(at_seconds)
        self.end()

    def drain_packets(self) -> bytes:
        packets = b"".join(self._packets)
        self._packets.clear()
        return packets

    def _set_time(self, at_seconds: float) -> None:
        self._at_ns = max(self._at_ns, round(at_seconds * _NS_PER_SECOND))
        self._timestamp = encode_uint(_TIMESTAMP, self._at_ns) + _OF_ONE_SEQUENCE

    def _new_uuid(self) -> int:
        self._last_uuid += 1
        return self._last_uuid


_EVENTS, _HOST, _DEVICES = range(3)  # the order of the top-level tracks other than processes


class HostTrace:
    """Converts the snapshots of a host, in order, to the packets of a trace; `tracks` counts its contents."""

    def __init__(self) -> None:
        self.tracks = TraceTracks()
        self._last_seconds: float | None = None
        self._pause_seconds: float | None = None
        self._interval_seconds = 0.0

    def add_snapshot(self, at_seconds: float, snapshot: Snapshot, events: Iterable[HostEvent]) -> bytes:
        """Returns the packets of a snapshot, and of the events since the previous snapshot.

        `at_seconds` is the time of the snapshot by the monotonic clock of the host.
        """
        tracks = self.tracks
        is_first = self._last_seconds is None
        self._end_at_gap(at_seconds, snapshot.interval_seconds)
        self._last_seconds, self._interval_seconds = at_seconds, snapshot.interval_seconds
        new_events = tuple(events)
        is_clock_set = any(event.kind == "clock" for event in new_events)
        tracks.begin_snapshot(at_seconds, snapshot.taken_at_unix_seconds if is_first or is_clock_set else None)
        self._add_events(new_events)
        self._add_findings(snapshot)
        self._add_host(snapshot)
        cores: dict[int, list[LogicalNeuronCore]] = {}
        for core in logical_cores(snapshot, max(1, snapshot.instance.logical_neuroncore_config)):
            cores.setdefault(core.device_index, []).append(core)
        processes = {process.pid: process for process in snapshot.processes}
        for device in snapshot.devices:
            self._add_device(device, cores.get(device.index, []), processes, snapshot)
        for job in running_jobs(snapshot):
            for rank in job.ranks:
                self._add_process(rank)
        tracks.end()
        return tracks.drain_packets()

    def end(self) -> bytes:
        """Ends the trace and returns its last packets. The last values end one interval after the last snapshot."""
        self._end_all_tracks()
        return self.tracks.drain_packets()

    def _end_all_tracks(self) -> None:
        if self._last_seconds is not None:
            self.tracks.end_all(self._last_seconds + self._interval_seconds)

    def _end_at_gap(self, at_seconds: float, interval_seconds: float) -> None:
        if self._last_seconds is not None:
            pause_seconds, usual_seconds = at_seconds - self._last_seconds, self._pause_seconds
            if usual_seconds is not None and pause_seconds > _GAP_PAUSES * max(usual_seconds, interval_seconds):
                self._end_all_tracks()
            self._pause_seconds = pause_seconds

    def _add_events(self, events: Iterable[HostEvent]) -> None:
        for event in events:
            track = self.tracks.group("events", "Events", parent=self._health_group())
            places = (("pid", event.pid), ("device", event.device_index), ("core", event.core_index))
            notes: dict[str, str | int] = {"severity": event.severity}
            notes |= {name: number for name, number in places if number is not None}
            self.tracks.add_instant(track, event.text, event.kind, notes)

    def _add_findings(self, snapshot: Snapshot) -> None:
        for finding in snapshot.health.findings if snapshot.health is not None else ():
            notes = {"severity": finding.severity.name.lower(), "action": escape_controls(finding.action)}
            self.tracks.set_slice(
                ("finding", finding.identity),
                escape_controls(finding.reason[:_LONGEST_TEXT]),
                "finding",
                notes,
                track=_finding_name(finding),
                parent=self._health_group(),
                rank=1,
            )

    def _health_group(self) -> int:
        return self.tracks.group("health", "Events and health", rank=_EVENTS)

    def _add_host(self, snapshot: Snapshot) -> None:
        host, tracks = snapshot.host, self.tracks
        group = tracks.group("host", "Host", rank=_HOST)
        usage = host.vcpu_average
        busy = None if usage is None else 100.0 * max(0.0, 1.0 - usage.idle_ratio - usage.io_wait_ratio)
        tracks.set_counter("vcpu", busy, "vCPUs busy", "%", parent=group)
        tracks.set_counter("memory", host.memory_used_bytes, "memory in use", CounterUnit.BYTES, parent=group, rank=1)
        for interface in host.network_interfaces:
            name = escape_controls(interface.name)
            for direction, rate in (
                ("received", interface.received_bytes_per_second),
                ("sent", interface.sent_bytes_per_second),
            ):
                tracks.set_counter(("net", name, direction), rate, f"{name} {direction}", "B/s", parent=group, rank=2)

    def _add_device(
        self, device: Device, cores: list[LogicalNeuronCore], processes: dict[int, Process], snapshot: Snapshot
    ) -> None:
        tracks, index = self.tracks, device.index
        simulated = " (simulated)" if snapshot.source is SourceKind.SIMULATED else ""
        name, description = f"Neuron device {index}{simulated}", encode_string(14, device.bdf) if device.bdf else b""
        group = tracks.group(("device", index), name, rank=_DEVICES + index, more_fields=description)
        for core in cores:
            self._add_core(core, processes, group)
        memory = memory_categories(sum_device_memory(core.memory for each in cores for core in each.cores))
        for rank, (field, size) in enumerate(memory.items()):
            key = ("hbm", index, field)
            if size or tracks.has_counter(key):
                name = field.removesuffix("_bytes").replace("_", " ")
                tracks.set_counter(key, size, f"HBM: {name}", CounterUnit.BYTES, parent=group, rank=1000 + rank)
        if device.power is not None:
            power = 100.0 * device.power.average_ratio
            tracks.set_counter(("power", index), power, "power of its maximum", "%", parent=group, rank=2000)

    def _add_core(self, core: LogicalNeuronCore, processes: dict[int, Process], device: int) -> None:
        tracks, name = self.tracks, f"NeuronCore {core.index}"
        track = tracks.group(("core", core.index), name, parent=device, rank=core.index)
        if core.owner_pids:
            names = [f"PID {pid} {_script_name(processes[pid])}" for pid in core.owner_pids if pid in processes]
            text = " and ".join(names) or f"PID {ranges_text(core.owner_pids)}"
            if core.is_owner_inferred:
                text += " (inferred)"
            tracks.set_slice(("core", core.index), text, "owner", {"pid": core.owner_pids[0]})
        tracks.set_counter(("busy", core.index), _percent(core.utilization_ratio), f"{name} busy", "%", parent=track)
        tracks.set_counter(("flops", core.index), core.flops_per_second, f"{name} FLOPS", "FLOPS", parent=track, rank=1)
        size = core.memory.total_bytes
        tracks.set_counter(("memory", core.index), size, f"{name} HBM", CounterUnit.BYTES, parent=track, rank=2)

    def _add_process(self, rank: Rank) -> None:
        process, tracks = rank.process, self.tracks
        key = ("process", process.pid, process.started_at_unix_seconds)
        name, command = _script_name(process), escape_controls(process.command[:_LONGEST_COMMAND])
        descriptor = encode_uint(1, process.pid) + encode_string(2, command) + encode_string(6, name)
        track = tracks.group(key, name, more_fields=encode_bytes(3, descriptor))
        cores = ranges_text(process.neuroncore_indices)
        text = f"holds NeuronCore{'s' if len(process.neuroncore_indices) > 1 else ''} {cores}" if cores else "no cores"
        notes = {"tag": escape_controls(process.tag[:_LONGEST_TEXT])}
        if process.job is not None:
            notes["job"] = escape_controls(process.job.name[:_LONGEST_TEXT])
        tracks.set_slice((key, "held"), text, "process", notes, track="NeuronCores", parent=track)
        for place, (title, value, unit) in enumerate(_process_values(rank), 1):
            tracks.set_counter((key, title), value, title, unit, parent=track, rank=place)


def _process_values(rank: Rank) -> list[tuple[str, float | None, CounterUnit | str]]:
    process, rates, latency = rank.process, rank.process.training_rates, rank.process.device_latency
    user, system = process.vcpu_user_ratio, process.vcpu_system_ratio
    return [
        ("NeuronCores busy", _percent(rank.utilization_ratio), "%"),
        ("HBM", sum_known(core.memory.total_bytes for core in rank.cores), CounterUnit.BYTES),
        ("host memory", process.host_memory.total_bytes, CounterUnit.BYTES),
        ("resident memory", process.resident_bytes, CounterUnit.BYTES),
        ("vCPU", None if user is None or system is None else _percent(user + system), "%"),
        ("executions", process.executions_per_second, "1/s"),
        ("latency p50", None if latency is None else 1e3 * latency.p50_seconds, "ms"),
        ("latency p99", None if latency is None else 1e3 * latency.p99_seconds, "ms"),
        ("steps", rank.steps_per_second, "1/s"),
        ("samples", None if rates is None else rates.samples_per_second, "1/s"),
        ("collectives", None if rates is None else _percent(rates.collective_ratio), "%"),
        ("input wait", None if rates is None else _percent(rates.input_wait_ratio), "%"),
        ("to device", None if rates is None else rates.to_device_bytes_per_second, "B/s"),
        ("from device", None if rates is None else rates.from_device_bytes_per_second, "B/s"),
    ]


def _script_name(process: Process) -> str:
    """Returns the script of a process, without the PID, which Perfetto adds."""
    name = escape_controls(script_text(process.command)[:_LONGEST_TEXT]) or "unknown command"
    return f"{name} (synthetic)" if process.synthetic and "synthetic" not in name else name


def _finding_name(finding: Finding) -> str:
    where = f" of PID {finding.pid}" if finding.pid is not None else ""
    if not where and finding.device_indices:
        where = f" of device {ranges_text(finding.device_indices)}"
    return escape_controls(f"{finding.kind}{where}")


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * ratio
