"""Reads the findings in a daemon's reply without protobuf, for commands that must start fast.

The field numbers are those of GetSnapshotResponse, Snapshot, Health and Finding in neuron.proto.
"""

from __future__ import annotations

from neurontools.model.finding import Finding, Health, Severity
from neurontools.rpc import wire
from neurontools.rpc.wire_fields import (
    read_bytes,
    read_double,
    read_optional_uint,
    read_text,
    read_uints,
    to_signed,
)

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, because importing typing is slow
if TYPE_CHECKING:
    from neurontools.rpc.wire_fields import Fields

METHOD = "/neurontools.v1.MonitorService/GetSnapshot"
_SNAPSHOT = 1
_TAKEN_AT_UNIX_SECONDS, _DAEMON_VERSION, _HEALTH = 2, 13, 17
_DEVICE_INDICES, _UNKNOWN_DEVICE_INDICES, _FINDINGS, _UNKNOWN_REASONS = 1, 2, 3, 4
_KIND, _SEVERITY, _REASON, _ACTION, _BEGAN, _DEVICES, _PID, _PIDS = range(1, 9)
_CORE, _PART, _JOB, _SYNTHETIC, _INJECTED = range(9, 14)
LAST_FIELD = _INJECTED
"""The highest field number of Finding that this module reads."""


def read_health(reply: bytes) -> tuple[Health | None, float, str]:
    """Decodes a GetSnapshot reply. Returns the host's health, the snapshot's Unix time, and the daemon's version.

    The health is None if the daemon does not evaluate it. Raises ValueError for a malformed reply.
    """
    snapshot = wire.decode(read_bytes(wire.decode(reply), _SNAPSHOT))
    message = snapshot.get(_HEALTH)
    health = _health(wire.decode(read_bytes(snapshot, _HEALTH))) if message else None
    return health, read_double(snapshot, _TAKEN_AT_UNIX_SECONDS), read_text(snapshot, _DAEMON_VERSION)


def _health(fields: Fields) -> Health:
    found, reasons = fields.get(_FINDINGS, []), fields.get(_UNKNOWN_REASONS, [])
    return Health(
        read_uints(fields, _DEVICE_INDICES),
        read_uints(fields, _UNKNOWN_DEVICE_INDICES),
        tuple(_finding(wire.decode(message)) for message in found if isinstance(message, bytes)),
        tuple(text.decode("utf-8", "replace") for text in reasons if isinstance(text, bytes)),
    )


def _finding(fields: Fields) -> Finding:
    pid = read_optional_uint(fields, _PID)
    severity = read_optional_uint(fields, _SEVERITY) or 0
    return Finding(
        read_text(fields, _KIND),
        # A newer daemon may send a severity that this version does not have: use the highest one of this version.
        Severity(min(severity, max(Severity))),
        read_text(fields, _REASON),
        read_text(fields, _ACTION),
        read_double(fields, _BEGAN),
        read_uints(fields, _DEVICES),
        None if pid is None else to_signed(pid),
        tuple(map(to_signed, read_uints(fields, _PIDS))),
        read_optional_uint(fields, _CORE),
        read_text(fields, _PART) if _PART in fields else None,
        read_text(fields, _JOB) if _JOB in fields else None,
        bool(read_optional_uint(fields, _SYNTHETIC)),
        bool(read_optional_uint(fields, _INJECTED)),
    )
