"""Whatever is packed comes back, from any place and in any order; what is alike takes little."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.history.packing import Packer
from tests.harness.examples import examples

NOISE = random.Random(1)


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


def test_equal_are_those_with_the_same_message() -> None:
    one, other = Packer(), Packer()
    other.pack(b"another")
    assert one.pack(b"same") == other.pack(b"same")
    assert one.pack(b"same") != other.pack(b"different")
    assert len({one.pack(b"same"), other.pack(b"same")}) == 1
