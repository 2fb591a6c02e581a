"""The small protobuf reader and writer against google.protobuf, and HPACK against the examples of RFC 7541."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.rpc import http2, wire

UINT64 = st.integers(0, 2**64 - 1)
UINT32 = st.integers(0, 2**32 - 1)


def make_sample_class() -> type[Message]:
    """A message with a field of each type that the writer and the reader know."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="wire_sample.proto", package="wire", syntax="proto3")
    sample = file.message_type.add(name="Sample")
    for number, (name, kind) in enumerate(
        [
            *(("small", field.TYPE_UINT32), ("large", field.TYPE_UINT64), ("flag", field.TYPE_BOOL)),
            *(("text", field.TYPE_STRING), ("blob", field.TYPE_BYTES), ("packed", field.TYPE_UINT32)),
            *(("signed", field.TYPE_INT64), ("real", field.TYPE_DOUBLE), ("short_real", field.TYPE_FLOAT)),
            ("names", field.TYPE_STRING),
        ],
        start=1,
    ):
        label = field.LABEL_REPEATED if name in ("packed", "names") else field.LABEL_OPTIONAL
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
        + wire.encode_uint(3, flag)
        + wire.encode_string(4, text)
        + wire.encode_bytes(5, blob)
        + wire.encode_packed(6, packed)
    )
    read = Sample()
    read.ParseFromString(written)
    assert read == Sample(small=small, large=large, flag=flag, text=text, blob=blob, packed=packed)


@given(
    st.integers(1, 2**29 - 1),
    st.lists(UINT32, min_size=1),
    st.integers(-(2**63), -1),
    st.lists(st.text(), min_size=1),
    st.floats(min_value=1, allow_nan=False),
)
def test_reads_what_protobuf_writes(small: int, packed: list[int], signed: int, names: list[str], real: float) -> None:
    assert wire.decode(wire.encode_uint(small, -signed)) == {small: [-signed]}  # every field number comes back
    message = Sample(small=small, packed=packed, signed=signed, names=names, real=real, short_real=1.0)
    fields = wire.decode(message.SerializeToString())
    (packed_value,) = fields.pop(6)
    (real_value,) = fields.pop(8)
    assert isinstance(packed_value, bytes)
    assert wire.decode_packed(packed_value) == packed
    assert real_value == Sample(real=real).SerializeToString()[1:]
    assert fields == {1: [small], 7: [signed + 2**64], 9: [b"\x00\x00\x80\x3f"], 10: [name.encode() for name in names]}


@given(st.binary(max_size=60))
@example(b"\x08" + b"\xff" * 9 + b"\x01")
@example(b"\xfd\xff\xff\xff\x0f1234")
def test_accepts_only_what_protobuf_accepts(garbage: bytes) -> None:
    try:
        assert all(0 <= value < 2**64 for value in wire.decode_packed(garbage))
    except ValueError as error:
        assert str(error)
    try:
        wire.decode(garbage)
    except ValueError:
        return
    try:
        empty_pb2.Empty().ParseFromString(garbage)
    except DecodeError:
        pytest.fail(f"protobuf rejects {garbage.hex()}")


def test_garbage_is_a_value_error() -> None:
    for garbage in (
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
    ):
        with pytest.raises(ValueError, match=r"."):
            wire.decode(garbage)
    with pytest.raises(ValueError, match="inside a varint"):
        wire.decode_packed(b"\x01\x80")


def test_what_cannot_be_written_is_a_value_error() -> None:
    for value in (-1, 2**64):
        with pytest.raises(ValueError, match="64-bit"):
            wire.encode_varint(value)
    for number in (0, -1, 2**29):
        with pytest.raises(ValueError, match="field number"):
            wire.encode_uint(number, 1)
    assert wire.encode_packed(6, []) == b""


# All 256 octets in order, coded by the PyPI package `hpack` 4, an independent implementation.
ALL_OCTETS_CODED = bytes.fromhex(
    "ffc7fffd8fffffe2fffffe3fffffe4fffffe5fffffe6fffffe7fffffe8ffffeafffffff3fffffa7fffffabffffffdfffffebfffffecfffff"
    "edfffffeefffffefffffff0ffffff1ffffff2fffffffbfffffcffffffd3fffffd7fffffdbfffffdffffffe3fffffe7fffffebfffffed4fe3"
    "f9ffaffcabf1febfafefe7fdfd2cbb00089969b71d79fb9f7fff20ffbff3ff50ddbd7f061c58f265cd9f469d5af66dddbf871e5f9cff7ff7"
    "fffc3ff9ffe45fff4719242cb34e6e9d68a6a3d7dac426defe3cfaf7fffbfe7ffbffdffffffcfffe6ffff4bfff9ffffa3fffd3ffff53fffd"
    "5ffffb3fffeb7fffdaffffb7ffff73fffeeffffdeffffebffffbfffffd9ffffdbfffebffffe0ffffeeffffc3ffff8bffff1ffffe4fffee7f"
    "ffb1ffff97fffd9ffffcdffff9fffffbffffdafffeeffff4ffffb7fffee7fffe8ffffd3fffdeffffd5fffeeffffbdffffe1fffdfffff7fff"
    "ff5ffffecffff07fff87fffe0ffff17fffedffff87ffff77fffeffffeaffff8bfffe3ffff93ffff87fffcbffff37ffff1fffff83ffffe1ff"
    "febfffe3ffff3fffff2ffffa3ffffd9fffff17ffffc7fffff27ffffdefffffbffffff2fffff8fffffb7fff97fff8fffffe6fffffc1fffff8"
    "7ffffe7fffffc5ffffe5fffe4ffff2fffffd1fffff4ffffffefffffe3fffffc9fffff97fffb3ffffcffffb7fffcdffff4ffff9ffffd1ffff"
    "cffffeaffffafffffddffffeffffff4fffff5fffffabffffa7ffffd7fffff9bffffecfffffb7fffff3fffffe8fffffd3fffffabfffff5fff"
    "ffff7ffffecfffffdbfffffbbfffff7ffffff0fffffbbf"
)


HUFFMAN = {
    "f1e3c2e5f23a6ba0ab90f4ff": b"www.example.com",  # C.4.1
    "a8eb10649cbf": b"no-cache",  # C.4.2
    "25a849e95ba97d7f": b"custom-key",  # C.4.3
    "6402": b"302",  # C.6.1
    "d07abe941054d444a8200595040b8166e082a62d1bff": b"Mon, 21 Oct 2013 20:13:21 GMT",  # C.6.1
    "9d29ad171863c78f0b97c8e9ae82ae43d3": b"https://www.example.com",  # C.6.1
    "": b"",
    ALL_OCTETS_CODED.hex(): bytes(range(256)),
}


def test_huffman_codes_of_the_rfc() -> None:
    assert {coded: http2.decode_huffman(bytes.fromhex(coded)) for coded in HUFFMAN} == HUFFMAN
    for coded in ("00", "ff", "fffffffc", "ffffffff", "f1e3c2e5f23a6ba0ab90f4"):
        with pytest.raises(ValueError, match=r"padding|end-of-string"):
            http2.decode_huffman(bytes.fromhex(coded))


BLOCKS = {
    "400a637573746f6d2d6b65790d637573746f6d2d686561646572": [(b"custom-key", b"custom-header")],  # C.2.1
    "040c2f73616d706c652f70617468": [(b":path", b"/sample/path")],  # C.2.2
    "100870617373776f726406736563726574": [(b"password", b"secret")],  # C.2.3
    "82": [(b":method", b"GET")],  # C.2.4
    "828684418cf1e3c2e5f23a6ba0ab90f4ff": [
        *((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"))
    ],  # C.4.1
    "2088": [(b":status", b"200")],  # a dynamic table size update to 0
}
MALFORMED = [
    "80",  # index 0
    "be",  # index 62, the dynamic table
    "7e0161",  # a name from the dynamic table
    "3fe11f",  # a dynamic table of 4096 bytes
    *("00", "000361", "0001610362"),  # cut short
    "ffffffffffffffffff7f",  # an integer without end
    "0001617fffffffffffffff",
    "0001618100",  # a Huffman string of invalid padding
]


def test_header_blocks_of_the_rfc() -> None:
    assert {block: http2.decode_headers(bytes.fromhex(block)) for block in BLOCKS} == BLOCKS
    for block in MALFORMED:
        with pytest.raises(ValueError, match=r"."):
            http2.decode_headers(bytes.fromhex(block))


def test_static_table_has_the_61_entries_of_appendix_a() -> None:
    assert len(http2.STATIC_TABLE) == 61
    spots = {1: b":authority", 8: b":status", 16: b"accept-encoding", 31: b"content-type", 61: b"www-authenticate"}
    assert {index: http2.STATIC_TABLE[index - 1][0] for index in spots} == spots


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=40_000)), max_size=5), st.binary(max_size=200))
def test_what_is_encoded_decodes_to_itself_and_rubbish_or_not_at_all(
    headers: list[tuple[bytes, bytes]], block: bytes
) -> None:
    assert http2.decode_headers(http2.encode_headers(headers)) == headers
    try:
        headers = http2.decode_headers(block)
    except ValueError:
        return
    assert len(headers) <= len(block)
