"""The small protobuf reader and writer against google.protobuf."""

from collections.abc import Callable

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.rpc import wire

UINT64 = st.integers(0, 2**64 - 1)
UINT32 = st.integers(0, 2**32 - 1)


def make_sample_class() -> type[Message]:
    """A message with a field of each type that the writer and the reader know."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="wire_sample.proto", package="wire", syntax="proto3")
    sample = file.message_type.add(name="Sample")
    for number, (name, kind, label) in enumerate(
        [
            ("small", field.TYPE_UINT32, field.LABEL_OPTIONAL),
            ("large", field.TYPE_UINT64, field.LABEL_OPTIONAL),
            ("flag", field.TYPE_BOOL, field.LABEL_OPTIONAL),
            ("text", field.TYPE_STRING, field.LABEL_OPTIONAL),
            ("blob", field.TYPE_BYTES, field.LABEL_OPTIONAL),
            ("packed", field.TYPE_UINT32, field.LABEL_REPEATED),
            ("signed", field.TYPE_INT64, field.LABEL_OPTIONAL),
            ("real", field.TYPE_DOUBLE, field.LABEL_OPTIONAL),
            ("short_real", field.TYPE_FLOAT, field.LABEL_OPTIONAL),
            ("names", field.TYPE_STRING, field.LABEL_REPEATED),
        ],
        start=1,
    ):
        sample.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("wire.Sample"))


Sample: Callable[..., Message] = make_sample_class()


@given(UINT32, UINT64, st.booleans(), st.text(), st.binary(), st.lists(UINT32))
def test_protobuf_reads_what_is_written(
    small: int, large: int, flag: bool, text: str, blob: bytes, packed: list[int]
) -> None:
    written = (
        wire.encode_uint(1, small)
        + wire.encode_uint(2, large)
        + wire.encode_bool(3, flag)
        + wire.encode_string(4, text)
        + wire.encode_bytes(5, blob)
        + wire.encode_packed(6, packed)
    )
    read = Sample()
    read.ParseFromString(written)
    assert read == Sample(small=small, large=large, flag=flag, text=text, blob=blob, packed=packed)


@given(
    st.integers(1, 2**32 - 1),
    st.lists(UINT32, min_size=1),
    st.integers(-(2**63), -1),
    st.lists(st.text(), min_size=1),
    st.floats(min_value=1, allow_nan=False),
)
def test_reads_what_protobuf_writes(small: int, packed: list[int], signed: int, names: list[str], real: float) -> None:
    message = Sample(small=small, packed=packed, signed=signed, names=names, real=real, short_real=1.0)
    fields = wire.decode(message.SerializeToString())
    (packed_value,) = fields.pop(6)
    (real_value,) = fields.pop(8)
    assert isinstance(packed_value, bytes)
    assert wire.decode_packed(packed_value) == packed
    assert real_value == Sample(real=real).SerializeToString()[1:]
    assert fields == {
        1: [small],
        7: [signed + 2**64],
        9: [b"\x00\x00\x80\x3f"],
        10: [name.encode() for name in names],
    }


@given(st.integers(1, 2**29 - 1), UINT64)
def test_every_field_number_comes_back(number: int, value: int) -> None:
    assert wire.decode(wire.encode_uint(number, value)) == {number: [value]}


@given(st.binary(max_size=60))
@example(b"\x08" + b"\xff" * 9 + b"\x01")
@example(b"\xfd\xff\xff\xff\x0f1234")
def test_accepts_only_what_protobuf_accepts(garbage: bytes) -> None:
    try:
        wire.decode(garbage)
    except ValueError:
        return
    try:
        empty_pb2.Empty().ParseFromString(garbage)
    except DecodeError:
        pytest.fail(f"protobuf rejects {garbage.hex()}")


@given(st.binary(max_size=60))
def test_random_packed_values_decode_or_are_value_errors(garbage: bytes) -> None:
    try:
        values = wire.decode_packed(garbage)
    except ValueError:
        return
    assert all(0 <= value < 2**64 for value in values)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x08",  # a value is missing
        b"\x80",  # half a tag
        b"\x00\x01",  # field number 0
        b"\x0a\x05abc",  # a string of 5 bytes with 3
        b"\x0d123",  # half a fixed32
        b"\x09123",  # half a fixed64
        b"\x0b\x0c",  # a group
        b"\x0e",  # a wire type that doesn't exist
        b"\x08" + b"\xff" * 10 + b"\x01",  # 11 bytes of varint
        b"\x08" + b"\xff" * 9 + b"\x02",  # 65 bits
        b"\x80\x80\x80\x80\x10\x01",  # field number 2**29
    ],
)
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.decode(garbage)


def test_half_a_packed_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="inside a varint"):
        wire.decode_packed(b"\x01\x80")


@pytest.mark.parametrize("value", [-1, 2**64])
def test_integers_out_of_range_are_value_errors(value: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        wire.encode_varint(value)


@pytest.mark.parametrize("number", [0, -1, 2**29])
def test_field_numbers_out_of_range_are_value_errors(number: int) -> None:
    with pytest.raises(ValueError, match="field number"):
        wire.encode_uint(number, 1)


def test_an_empty_packed_field_is_not_written() -> None:
    assert wire.encode_packed(6, []) == b""
