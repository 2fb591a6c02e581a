"""Reads numbers, texts and inner messages from a decoded message. Raises ValueError for values of another type."""

from __future__ import annotations

from neurontools.rpc import wire

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, because importing typing is slow
if TYPE_CHECKING:
    from collections.abc import Mapping

    Fields = Mapping[int, list[int | bytes]]


def read_bytes(fields: Fields, number: int) -> bytes:
    """Returns the last value of a field of bytes, text or a message; b"" if it is absent."""
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no message and no text")
    return value


def read_text(fields: Fields, number: int) -> str:
    return read_bytes(fields, number).decode("utf-8", "replace")


def read_optional_uint(fields: Fields, number: int) -> int | None:
    value = fields[number][-1] if number in fields else None
    if isinstance(value, bytes):
        raise ValueError(f"field {number} is no number")
    return value


def to_signed(value: int) -> int:
    """Decodes an int32 or int64, which is sent as two's complement in 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def read_uints(fields: Fields, number: int) -> tuple[int, ...]:
    """Decodes a repeated field of unsigned integers, packed or not."""
    values: list[int] = []
    for value in fields.get(number, []):
        values += wire.decode_packed(value) if isinstance(value, bytes) else [value]
    return tuple(values)


def read_double(fields: Fields, number: int) -> float:
    from struct import unpack

    value = read_bytes(fields, number) or bytes(8)
    if len(value) != 8:
        raise ValueError(f"field {number} is no double")
    number_read: float = unpack("<d", value)[0]
    return number_read


def read_messages(fields: Fields, number: int) -> list[dict[int, list[int | bytes]]]:
    """Decodes a repeated field of messages."""
    return [wire.decode(message) for message in fields.get(number, []) if isinstance(message, bytes)]
