"""Reads the findings in a daemon's reply without protobuf, for commands that must start fast.

The field numbers are those of GetSnapshotResponse, Snapshot, Health and Finding in neuron.proto.
"""

from __future__ import annotations

from neurontools.model.finding import Finding, Health, Severity
from neurontools.rpc import wire

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, because importing typing is slow
if TYPE_CHECKING:
    from collections.abc import Mapping

    _Fields = Mapping[int, list[int | bytes]]

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
    snapshot = wire.decode(_bytes(wire.decode(reply), _SNAPSHOT))
    message = snapshot.get(_HEALTH)
    health = _health(wire.decode(_bytes(snapshot, _HEALTH))) if message else None
    return health, _double(snapshot, _TAKEN_AT_UNIX_SECONDS), _text(snapshot, _DAEMON_VERSION)


def _health(fields: _Fields) -> Health:
    found, reasons = fields.get(_FINDINGS, []), fields.get(_UNKNOWN_REASONS, [])
    return Health(
        _uints(fields, _DEVICE_INDICES),
        _uints(fields, _UNKNOWN_DEVICE_INDICES),
        tuple(_finding(wire.decode(message)) for message in found if isinstance(message, bytes)),
        tuple(text.decode("utf-8", "replace") for text in reasons if isinstance(text, bytes)),
    )


def _finding(fields: _Fields) -> Finding:
    pid = _optional_uint(fields, _PID)
    severity = _optional_uint(fields, _SEVERITY) or 0
    return Finding(
        _text(fields, _KIND),
        # A newer daemon may send a severity that this version does not have: use the highest one of this version.
        Severity(min(severity, max(Severity))),
        _text(fields, _REASON),
        _text(fields, _ACTION),
        _double(fields, _BEGAN),
        _uints(fields, _DEVICES),
        None if pid is None else _signed(pid),
        tuple(map(_signed, _uints(fields, _PIDS))),
        _optional_uint(fields, _CORE),
        _text(fields, _PART) if _PART in fields else None,
        _text(fields, _JOB) if _JOB in fields else None,
        bool(_optional_uint(fields, _SYNTHETIC)),
        bool(_optional_uint(fields, _INJECTED)),
    )


def _bytes(fields: _Fields, number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no message and no text")
    return value


def _text(fields: _Fields, number: int) -> str:
    return _bytes(fields, number).decode("utf-8", "replace")


def _optional_uint(fields: _Fields, number: int) -> int | None:
    value = fields[number][-1] if number in fields else None
    if isinstance(value, bytes):
        raise ValueError(f"field {number} is no number")
    return value


def _signed(value: int) -> int:
    """Decodes an int32 or int64, which is sent as two's complement in 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def _uints(fields: _Fields, number: int) -> tuple[int, ...]:
    """Decodes a repeated field of unsigned integers, packed or not."""
    values: list[int] = []
    for value in fields.get(number, []):
        values += wire.decode_packed(value) if isinstance(value, bytes) else [value]
    return tuple(values)


def _double(fields: _Fields, number: int) -> float:
    from struct import unpack

    value = _bytes(fields, number) or bytes(8)
    if len(value) != 8:
        raise ValueError(f"field {number} is no double")
    number_read: float = unpack("<d", value)[0]
    return number_read
