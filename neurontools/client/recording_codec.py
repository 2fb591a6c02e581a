"""Flattens snapshot messages into lists of numbers, and restores them. The code reads the protobuf descriptors, so a
new field needs no change here.

Each message is flattened in a fixed order of its fields, submessages included. Strings, lists of numbers, and the
lengths of lists form the shape. While the shape stays the same, a recording stores only the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from neurontools.rpc import neuron_pb2
from neurontools.rpc.wire import append_varint, decode_varint
from neurontools.util.terminal import escape_controls

Number = float | int | None
Buckets = dict[int, int]
Path = tuple[tuple[str, ...], tuple[int, ...]]
"""The path of a number in a snapshot message: the field names from the root, and the indices in repeated fields."""

MOST_NUMBERS = 500_000
"""Limit of numbers in one snapshot. The largest instance with a process on every core has 14,000."""

_LONGEST_NUMBER_BITS = 640  # limit for one encoded integer; real ones are far smaller
_HISTOGRAM = "LatencyHistogram"
_INTEGERS = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_BOOL,
        FieldDescriptor.TYPE_ENUM,
    }
)


class Plan:
    """How the fields of one message type are flattened. Absent submessages are included, so the order is fixed."""

    def __init__(self, descriptor: Descriptor, fields: FieldList) -> None:
        self.name = descriptor.name
        self.is_histogram = descriptor.name == _HISTOGRAM
        self.scalars: list[tuple[str, bool, bool]] = []  # name, optional, integer
        self.enums: list[tuple[str, frozenset[int]]] = []  # name, valid numbers
        self.texts: list[tuple[str, bool]] = []
        self.lists: list[str] = []
        self.parts: list[tuple[str, Plan]] = []
        self.repeated: list[tuple[str, Plan]] = []
        known = [field for field in descriptor.fields if field.number <= fields.get(descriptor.name, 0)]
        for field in sorted(known, key=lambda field: field.number):
            is_list = _is_repeated(field)
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                (self.repeated if is_list else self.parts).append(
                    (field.name, Plan(cast(Descriptor, field.message_type), fields))
                )
            elif is_list:
                if not self.is_histogram:
                    self.lists.append(field.name)
            elif field.type == FieldDescriptor.TYPE_STRING:
                self.texts.append((field.name, field.has_presence))
            else:
                self.scalars.append((field.name, field.has_presence, field.type in _INTEGERS))
                if field.enum_type is not None:
                    self.enums.append((field.name, _valid_numbers(field.enum_type)))

    def check(self, message: Any) -> None:
        """Raises ValueError if an enum field of a message has a value that this version does not know."""
        for name, numbers in self.enums:
            if getattr(message, name) not in numbers:
                raise ValueError(f"{self.name}.{name} is {getattr(message, name)}, which this version doesn't know")


def _valid_numbers(enum: EnumDescriptor) -> frozenset[int]:
    return frozenset(value.number for value in enum.values if not value.name.endswith("_UNSPECIFIED"))


def _is_repeated(field: FieldDescriptor) -> bool:
    """Returns whether a field is repeated. Protobuf 6 added `is_repeated`; protobuf 7 removed `label`."""
    known: bool | None = getattr(field, "is_repeated", None)
    if known is not None:
        return known
    label: int = getattr(field, "label")  # noqa: B009 - missing from the stubs of protobuf 7
    return label == FieldDescriptor.LABEL_REPEATED


def snapshot_plan(fields: FieldList) -> Plan:
    """Returns the plan that flattens a snapshot, restricted to these fields."""
    return Plan(neuron_pb2.Snapshot.DESCRIPTOR, fields)


class Flat:
    """A flattened snapshot: its numbers, latency histograms, and shape (strings and lengths of lists).

    Raises ValueError for more than MOST_NUMBERS numbers and for unknown enum values.
    """

    __slots__ = ("histograms", "numbers", "shape")

    def __init__(self, snapshot: neuron_pb2.Snapshot, plan: Plan) -> None:
        self.numbers: list[Number] = []
        self.histograms: list[Buckets] = []
        shape: list[object] = []
        _flatten(snapshot, plan, self.numbers, self.histograms, shape)
        self.shape = tuple(shape)


def _flatten(message: Any, plan: Plan, numbers: list[Number], histograms: list[Buckets], shape: list[object]) -> None:
    plan.check(message)
    for name, is_optional, _ in plan.scalars:
        numbers.append(getattr(message, name) if not is_optional or message.HasField(name) else None)
    if plan.is_histogram:
        histograms.append(dict(zip(message.bucket_indices, message.bucket_counts, strict=False)))
        return
    for name, is_optional in plan.texts:
        shape.append(getattr(message, name) if not is_optional or message.HasField(name) else None)
    shape.extend(tuple(getattr(message, name)) for name in plan.lists)
    for name, part in plan.parts:
        numbers.append(1 if message.HasField(name) else 0)
        # An absent submessage is flattened as an empty one, so the list of numbers has the same length.
        _flatten(getattr(message, name), part, numbers, histograms, shape)
    for name, part in plan.repeated:
        items = getattr(message, name)
        shape.append(len(items))
        for item in items:
            _flatten(item, part, numbers, histograms, shape)
            if len(numbers) > MOST_NUMBERS:
                raise ValueError("a snapshot has too many numbers")


def fill(snapshot: neuron_pb2.Snapshot, plan: Plan, numbers: list[Number], histograms: list[Buckets]) -> None:
    """Overwrites the numbers and histograms of a snapshot with those of another snapshot of the same shape.

    Raises ValueError if a number does not fit its field.
    """
    _fill(snapshot, plan, iter(numbers), iter(histograms))


def _fill(message: Any, plan: Plan, numbers: Iterator[Number], histograms: Iterator[Buckets]) -> None:
    for name, _, is_integer in plan.scalars:
        value = next(numbers)
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, int(value) if is_integer else value)
    plan.check(message)
    if plan.is_histogram:
        buckets = next(histograms)
        message.ClearField("bucket_indices")
        message.ClearField("bucket_counts")
        message.bucket_indices.extend(sorted(buckets))
        message.bucket_counts.extend(buckets[index] for index in sorted(buckets))
        return
    for name, part in plan.parts:
        is_there = next(numbers)
        _fill(getattr(message, name), part, numbers, histograms)
        if is_there:
            getattr(message, name).SetInParent()
        else:
            message.ClearField(name)
    for name, part in plan.repeated:
        for item in getattr(message, name):
            _fill(item, part, numbers, histograms)


def paths(snapshot: neuron_pb2.Snapshot, plan: Plan) -> list[Path]:
    """Returns the path of each number in a flattened snapshot, in the order of `Flat.numbers`."""
    found: list[Path] = []
    _paths(snapshot, plan, (), (), found)
    return found


def histogram_paths(snapshot: neuron_pb2.Snapshot, plan: Plan) -> list[Path]:
    """Returns the path of each latency histogram in a flattened snapshot, in the order of `Flat.histograms`."""
    numbers = paths(snapshot, plan)
    return [(names[:-1], at) for names, at in numbers if names[-1] == "sum_seconds"]


def _paths(message: Any, plan: Plan, names: tuple[str, ...], at: tuple[int, ...], found: list[Any]) -> None:
    found.extend(((*names, name), at) for name, _, _ in plan.scalars)
    if plan.is_histogram:
        return
    for name, part in plan.parts:
        found.append(((*names, name, "?"), at))
        _paths(getattr(message, name), part, (*names, name), at, found)
    for name, part in plan.repeated:
        for position, item in enumerate(getattr(message, name)):
            _paths(item, part, (*names, name), (*at, position), found)


def write_integers(values: list[int]) -> bytes:
    """Encodes integers as zigzag LEB128. A run of zeros becomes a 0 and the number of further zeros."""
    out = bytearray()
    zeros = 0
    for value in values:
        if not value:
            zeros += 1
            continue
        if zeros:
            out.append(0)
            append_varint(out, zeros - 1)
            zeros = 0
        append_varint(out, value << 1 if value > 0 else (-value << 1) - 1)
    if zeros:
        out.append(0)
        append_varint(out, zeros - 1)
    return bytes(out)


def read_integers(data: bytes, limit: int) -> list[int]:
    """Decodes the output of `write_integers`. Raises ValueError if malformed or longer than `limit` integers."""
    values: list[int] = []
    position, size = 0, len(data)
    while position < size:
        value = data[position]
        if value < 128:  # the common case
            position += 1
        else:
            value, position = decode_varint(data, position, _LONGEST_NUMBER_BITS)
        if value:
            values.append(value >> 1 if not value & 1 else -(value + 1 >> 1))
        else:
            run, position = decode_varint(data, position)
            if len(values) + run + 1 > limit:
                raise ValueError("more numbers than the snapshot has")
            values.extend([0] * (run + 1))
        if len(values) > limit:
            raise ValueError("more numbers than the snapshot has")
    return values


def parse_snapshot(data: bytes) -> neuron_pb2.Snapshot:
    """Parses the decompressed payload of a key snapshot. Raises ValueError if it is malformed."""
    from google.protobuf.message import DecodeError

    try:
        return neuron_pb2.Snapshot.FromString(data)
    except DecodeError as error:
        raise ValueError(f"no snapshot: {error}") from error


FieldList = Mapping[str, int]
"""Maps the name of each message type to its highest field number in a recording."""

# The highest field numbers in recordings whose header does not list them.
FIRST: FieldList = {
    "Snapshot": 15,
    "Instance": 21,
    "Device": 12,
    "HbmStack": 3,
    "EccCounters": 5,
    "PowerUtilization": 4,
    "HostMemory": 8,
    "NeuronCore": 15,
    "DeviceMemory": 11,
    "StatusCounters": 24,
    "Process": 30,
    "LoadedModel": 7,
    "Subgraph": 5,
    "ExecutionCounters": 6,
    "ErrorCounters": 6,
    "LatencyHistogram": 3,
    "LatencyPercentiles": 7,
    "Attribution": 7,
    "Host": 8,
    "VcpuUsage": 7,
    "PodAllocation": 5,
}


def _highest(descriptor: Descriptor, found: dict[str, int]) -> dict[str, int]:
    if descriptor.name not in found:
        found[descriptor.name] = max(field.number for field in descriptor.fields)
        for field in descriptor.fields:
            if field.message_type is not None:
                _highest(field.message_type, found)
    return found


CURRENT: FieldList = _highest(neuron_pb2.Snapshot.DESCRIPTOR, {})


def field_list_of(header: Mapping[str, object]) -> FieldList:
    """Returns the field list (highest field numbers) in the header of a recording, or `FIRST` if the header has none.

    Raises ValueError if the list is malformed or has fields that this version does not know.
    """
    told = header.get("fields", FIRST)
    if not isinstance(told, dict) or not all(type(number) is int for number in told.values()):
        raise ValueError("its list of fields is wrong; nothing of it can be shown")
    newer = sorted(name for name, number in told.items() if number > CURRENT.get(name, 0))
    if newer:
        names = escape_controls(", ".join(newer[:3]))
        raise ValueError(f"it has fields of {names} that this version doesn't know; take a newer neuron-top")
    if any(told.get(name, 0) < number for name, number in FIRST.items()):
        raise ValueError("its list of fields lacks some that every recording has; nothing of it can be shown")
    return told
