"""The protobuf wire format without protobuf: encodes requests, decodes the outer fields of replies.

`import google.protobuf` takes longer than all of `neuron-ls`. Source: https://protobuf.dev/programming-guides/encoding/
"""

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5

_MAX_FIELD_NUMBER = 2**29 - 1
_FIXED_SIZES_BYTES = {FIXED64: 8, FIXED32: 4}


def append_varint(encoded: bytearray, value: int) -> None:
    """Appends a non-negative integer of any size as a varint (LEB128): seven bits per byte, the lowest first."""
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)


def encode_varint(value: int) -> bytes:
    """Encodes an unsigned integer below 2**64 as a varint."""
    if not 0 <= value < 2**64:
        raise ValueError(f"{value} is not an unsigned 64-bit integer")
    encoded = bytearray()
    append_varint(encoded, value)
    return bytes(encoded)


def decode_varint(message: bytes, position: int) -> tuple[int, int]:
    """Decodes a varint. Returns its value and the position after it. Raises ValueError if it is cut off or too long."""
    value = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                raise ValueError("varint over 64 bits")
            return value, position
        shift += 7
        if shift >= 64:
            raise ValueError("varint over 64 bits")
    raise ValueError("cut off inside a varint")


def encode_uint(number: int, value: int) -> bytes:
    """Encodes a field of type uint32, uint64, enum or bool."""
    return _tag(number, VARINT) + encode_varint(value)


def encode_bytes(number: int, value: bytes) -> bytes:
    """Encodes a field of type bytes, or a field with an encoded message."""
    return _tag(number, LENGTH_DELIMITED) + encode_varint(len(value)) + value


def encode_string(number: int, value: str) -> bytes:
    return encode_bytes(number, value.encode())


def encode_packed(number: int, values: list[int]) -> bytes:
    """Encodes a packed repeated field of unsigned integers. Empty lists encode to nothing, as in protobuf."""
    return encode_bytes(number, b"".join(map(encode_varint, values))) if values else b""


def decode(message: bytes) -> dict[int, list[int | bytes]]:
    """Decodes a message to {field number: [its values, in order]}. Raises ValueError if it is malformed.

    A varint is an int (a negative int32 or int64 as its two's complement in 64 bits). Every other value is bytes:
    strings, messages and packed fields as they are; fixed32 and fixed64 (float, double) as 4 and 8 little-endian bytes.
    Groups, which no proto3 message has, are an error.
    """
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(message):
        tag, position = decode_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD_NUMBER:
            raise ValueError(f"invalid field number {number}")
        value: int | bytes
        if wire_type == VARINT:
            value, position = decode_varint(message, position)
        else:
            if wire_type == LENGTH_DELIMITED:
                size, position = decode_varint(message, position)
            elif wire_type in _FIXED_SIZES_BYTES:
                size = _FIXED_SIZES_BYTES[wire_type]
            else:
                raise ValueError(f"wire type {wire_type} of field {number}")
            end = position + size
            if end > len(message):
                raise ValueError(f"field {number} runs past the end of the message")
            value, position = message[position:end], end
        fields.setdefault(number, []).append(value)
    return fields


def decode_packed(values: bytes) -> list[int]:
    """Decodes one packed repeated field of unsigned integers. Raises ValueError if it ends inside a value."""
    decoded = []
    position = 0
    while position < len(values):
        value, position = decode_varint(values, position)
        decoded.append(value)
    return decoded


def _tag(number: int, wire_type: int) -> bytes:
    if not 1 <= number <= _MAX_FIELD_NUMBER:
        raise ValueError(f"invalid field number {number}")
    return encode_varint(number << 3 | wire_type)
