"""State of a host as neuron-diag needs it: devices, cores and findings of one snapshot, decoded without the model."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.finding import Health
from neurontools.rpc import health_reply, wire
from neurontools.rpc.wire_fields import (
    read_bytes,
    read_double,
    read_messages,
    read_optional_uint,
    read_text,
    read_uints,
)

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.rpc.wire_fields import Fields

METHOD = health_reply.METHOD
# Field numbers of Snapshot, Instance, Device, HbmStack and NeuronCore in neuron.proto.
_INTERVAL_SECONDS, _SOURCE, _INSTANCE, _DEVICES, _CORES, _WARNINGS = 4, 5, 6, 7, 8, 11
_INSTANCE_TYPE, _DEVICE_COUNT, _TOPOLOGY, _EXPECTED_INDICES = 1, 3, 9, 22
_INDEX, _BDF, _CONNECTED_TO, _MEMORY_BYTES, _HBM_STACKS, _SERIAL_NUMBER, _USED_BYTES = 1, 2, 5, 6, 7, 8, 3
_CORE_DEVICE, _OWNER_PID, _CANDIDATE_PIDS = 2, 5, 16
_SIMULATED = 1  # of SourceKind
_SWITCHED = "switched"  # these devices show no neighbours


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device of the snapshot. `hbm_used_bytes` is None if unknown."""

    index: int
    neighbour_count: int
    hbm_used_bytes: int | None
    hbm_bytes: int
    is_held: bool


@dataclass(frozen=True, slots=True)
class HostState:
    """The snapshot of a host. `health` is None if the daemon derives no findings."""

    socket_path: str
    instance_type: str
    is_simulated: bool
    expected_indices: tuple[int, ...]
    has_links: bool
    devices: Mapping[int, DeviceState]
    index_by_bdf: Mapping[str, int]
    index_by_serial_number: Mapping[str, int]
    health: Health | None
    daemon_version: str
    age_seconds: float
    interval_seconds: float
    warnings: tuple[str, ...]


def read_host_state(socket_path: str, reply: bytes, now_unix_seconds: float) -> HostState:
    """Decodes a reply to GetSnapshot. Raises ValueError for a malformed reply."""
    judged, at_unix_seconds, version = health_reply.read_health(reply)
    snapshot = wire.decode(read_bytes(wire.decode(reply), 1))
    instance = wire.decode(read_bytes(snapshot, _INSTANCE))
    held = {
        read_optional_uint(core, _CORE_DEVICE) or 0
        for core in read_messages(snapshot, _CORES)
        if _OWNER_PID in core or _CANDIDATE_PIDS in core
    }
    found = read_messages(snapshot, _DEVICES)
    devices = [_device_state(device, held) for device in found]
    count = read_optional_uint(instance, _DEVICE_COUNT) or 0
    return HostState(
        socket_path,
        read_text(instance, _INSTANCE_TYPE),
        read_optional_uint(snapshot, _SOURCE) == _SIMULATED,
        read_uints(instance, _EXPECTED_INDICES) or tuple(range(count)),
        count > 1 and read_text(instance, _TOPOLOGY) != _SWITCHED,
        {device.index: device for device in devices},
        _index_by_text(found, _BDF),
        _index_by_text(found, _SERIAL_NUMBER),
        judged,
        version,
        max(0.0, now_unix_seconds - at_unix_seconds),
        read_double(snapshot, _INTERVAL_SECONDS),
        tuple(text.decode("utf-8", "replace") for text in snapshot.get(_WARNINGS, []) if isinstance(text, bytes)),
    )


def _index_by_text(devices: Sequence[Fields], field: int) -> dict[str, int]:
    """Returns the indices of the devices by the value of a text field. Leaves out devices without a value."""
    return {text: read_optional_uint(fields, _INDEX) or 0 for fields in devices if (text := read_text(fields, field))}


def _device_state(fields: Fields, held: set[int]) -> DeviceState:
    index = read_optional_uint(fields, _INDEX) or 0
    used = [read_optional_uint(stack, _USED_BYTES) for stack in read_messages(fields, _HBM_STACKS)]
    known = [value for value in used if value is not None]
    return DeviceState(
        index,
        len(read_uints(fields, _CONNECTED_TO)),
        sum(known) if known and len(known) == len(used) else None,
        read_optional_uint(fields, _MEMORY_BYTES) or 0,
        index in held,
    )
