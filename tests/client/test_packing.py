"""Messages in shared zlib streams: what they take, how they come back, and what is refused."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.client.packing import MOST_PIECE_BYTES, MessageCompressor, MessageDecompressor, Packer
from tests.harness.examples import examples

NOISE = random.Random(1)
STREAM = zlib.compressobj()
FIRST_PIECE = STREAM.compress(b"first") + STREAM.flush(zlib.Z_SYNC_FLUSH)
END = STREAM.flush()


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(max_size=200) | st.integers(0, 100_000).map(NOISE.randbytes), max_size=80), st.data())
def test_messages_come_back_as_they_were(messages: list[bytes], data: st.DataObject) -> None:
    packer = Packer()
    packed = [packer.pack(message) for message in messages]
    for position in data.draw(st.permutations(range(len(messages))))[:8]:
        assert packed[position].message() == messages[position]


def test_messages_that_are_alike_take_what_differs_however_long_they_are() -> None:
    packer = Packer()
    message = bytearray(NOISE.randbytes(200_000))  # which can't be packed by itself
    packed = []
    for _ in range(32):
        message[NOISE.randrange(len(message))] ^= 1
        message += b"."
        packed.append(packer.pack(bytes(message)))
    assert packed[0].size_bytes > 200_000
    assert max(each.size_bytes for each in packed[1:]) < 20_000


def test_messages_that_grow_are_still_matched_with_those_before() -> None:
    packer = Packer()
    message = NOISE.randbytes(20_000)
    assert packer.pack(message).size_bytes > 20_000
    packer.pack(longer := message + NOISE.randbytes(20_000))
    assert packer.pack(longer).size_bytes < 1000


def test_equal_are_those_with_the_same_message() -> None:
    one, other = Packer(), Packer()
    other.pack(b"another")
    assert len({one.pack(b"same"), other.pack(b"same"), other.pack(b"different")}) == 2


def test_new_streams_start_after_as_many_messages_as_asked_for_and_for_longer_messages() -> None:
    compressor = MessageCompressor(3)
    counts = []
    for size in (100, 100, 100, 100, MOST_PIECE_BYTES, MOST_PIECE_BYTES + 1, 100):
        compressor.compress(bytes(size))
        counts.append(compressor.message_count)
    assert counts == [1, 2, 3, 1, 2, 1, 2]


def test_a_message_is_as_long_as_the_limit_at_most() -> None:
    message = NOISE.randbytes(2 * MOST_PIECE_BYTES + 1)
    pieces = MessageCompressor(2).compress(message)
    assert len(pieces) == 3
    assert MessageDecompressor(len(message)).decompress(pieces) == message
    for limit_bytes in (0, MOST_PIECE_BYTES, len(message) - 1):
        with pytest.raises(ValueError, match="over"):
            MessageDecompressor(limit_bytes).decompress(pieces)


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ([b"\xff"], "while decompressing"),
        ([], "0 pieces for 1 streams"),
        ([b"", b""], "2 pieces for 1 streams"),
        ([END], "a stream ends before its last message"),
    ],
)
def test_pieces_that_no_compressor_made_are_refused(pieces: list[bytes], told: str) -> None:
    decompressor = MessageDecompressor(1000)
    assert decompressor.decompress([FIRST_PIECE]) == b"first"
    with pytest.raises(ValueError, match=told):
        decompressor.decompress(pieces)
