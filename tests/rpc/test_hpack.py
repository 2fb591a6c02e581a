"""HPACK against the examples of RFC 7541 and against random input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.rpc import hpack

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


def test_huffman_knows_every_octet() -> None:
    assert hpack.decode_huffman(ALL_OCTETS_CODED) == bytes(range(256))


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),  # C.4.1
        ("a8eb10649cbf", b"no-cache"),  # C.4.2
        ("25a849e95ba97d7f", b"custom-key"),  # C.4.3
        ("6402", b"302"),  # C.6.1
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),  # C.6.1
        ("9d29ad171863c78f0b97c8e9ae82ae43d3", b"https://www.example.com"),  # C.6.1
        (
            "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),  # C.6.3
        ("", b""),
    ],
)
def test_huffman_examples_of_the_rfc(coded: str, text: bytes) -> None:
    assert hpack.decode_huffman(bytes.fromhex(coded)) == text


@pytest.mark.parametrize("coded", ["00", "ff", "fffffffc", "ffffffff", "f1e3c2e5f23a6ba0ab90f4"])
def test_huffman_rejects_bad_padding_and_end_of_string(coded: str) -> None:
    with pytest.raises(ValueError, match=r"padding|end-of-string"):
        hpack.decode_huffman(bytes.fromhex(coded))


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", [(b"custom-key", b"custom-header")]),  # C.2.1
        ("040c2f73616d706c652f70617468", [(b":path", b"/sample/path")]),  # C.2.2
        ("100870617373776f726406736563726574", [(b"password", b"secret")]),  # C.2.3
        ("82", [(b":method", b"GET")]),  # C.2.4
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
        ),  # C.4.1
        ("2088", [(b":status", b"200")]),  # a dynamic table size update to 0
    ],
)
def test_header_blocks_of_the_rfc(block: str, headers: list[tuple[bytes, bytes]]) -> None:
    assert hpack.decode(bytes.fromhex(block)) == headers


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # index 62, the dynamic table
        "7e0161",  # a name from the dynamic table
        "3fe11f",  # a dynamic table of 4096 bytes
        "00",
        "000361",
        "0001610362",
        "ffffffffffffffffff7f",  # an integer without end
        "0001617fffffffffffffff",
        "0001618100",  # a Huffman string of invalid padding
    ],
)
def test_malformed_blocks_are_value_errors(block: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        hpack.decode(bytes.fromhex(block))


def test_static_table_has_the_61_entries_of_appendix_a() -> None:
    assert len(hpack.STATIC_TABLE) == 61
    spots = {1: b":authority", 8: b":status", 16: b"accept-encoding", 31: b"content-type", 54: b"server"}
    assert {index: hpack.STATIC_TABLE[index - 1][0] for index in spots} == spots
    assert hpack.STATIC_TABLE[60] == (b"www-authenticate", b"")


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=40_000)), max_size=5))
def test_what_is_encoded_decodes_to_itself(headers: list[tuple[bytes, bytes]]) -> None:
    assert hpack.decode(hpack.encode(headers)) == headers


@given(st.binary(max_size=200))
def test_random_blocks_decode_or_are_value_errors(block: bytes) -> None:
    try:
        headers = hpack.decode(block)
    except ValueError:
        return
    assert len(headers) <= len(block)
