"""Which fields of the messages a recording has: numbers are told by position, so later fields have to be left out.

Fields only ever come, with growing numbers, so the highest number of each message says it all. It is in the header.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from neurontools.rpc import neuron_pb2
from neurontools.util.terminal import escape_controls

FieldList = Mapping[str, int]
"""By name of a message: the highest number of its fields."""

# Of recordings whose header has none.
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
    """The fields that the header of a recording tells; ValueError when it is none, or has fields unknown here."""
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
