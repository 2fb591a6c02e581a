from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from neurond.snapshots.store import Store

from neurontools import model
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import from_message
from tests.harness.snapshots import snapshot_of

SNAPSHOT = snapshot_of("trn1.2xlarge")


def put(store: Store, sequence: int, at_seconds: float | None = None, *, remember: bool = True, noise: int = 0) -> None:
    seconds = float(sequence) if at_seconds is None else at_seconds
    warning = Random(sequence).randbytes(noise).hex()
    store.put(replace(SNAPSHOT, sequence=sequence, taken_at_seconds=seconds, warnings=(warning,)), remember=remember)


def sequences(store: Store, duration_seconds: float = 0.0, after: int = 0) -> list[int]:
    return [
        pb.ListHistoryResponse.FromString(message).snapshot.sequence
        for message in store.history(duration_seconds, after)
    ]


def test_there_is_no_latest_entry_before_the_first() -> None:
    with pytest.raises(RuntimeError, match="no snapshot has been taken yet"):
        _ = Store(60, 2**20).latest


def test_the_message_is_the_snapshot() -> None:
    entry = Store(60, 2**20).put(SNAPSHOT)
    for response in (pb.GetSnapshotResponse, pb.WatchSnapshotsResponse, pb.ListHistoryResponse):
        assert from_message(model.Snapshot, response.FromString(entry.message).snapshot) == SNAPSHOT


def test_the_past_is_bounded_by_time() -> None:
    store = Store(10, 2**20)
    for sequence in range(1, 31):
        put(store, sequence)
    assert sequences(store) == list(range(20, 31))


def test_the_past_is_bounded_by_bytes() -> None:
    store = Store(1e6, 20_000)
    for sequence in range(1, 101):
        put(store, sequence, noise=1000)
    kept = sequences(store)
    assert kept == list(range(kept[0], 101))
    assert 5 <= len(kept) <= 20, "1000 random bytes, packed, each"
    assert store._packed_bytes == sum(len(past.packed) for past in store._past) <= 20_000
    put(store, 101, noise=30_000)
    assert sequences(store) == [], "one that is larger than the whole past isn't kept"
    assert store._packed_bytes == 0
    put(store, 102)
    assert sequences(store) == [102]


@pytest.mark.parametrize(("seconds", "size_bytes"), [(0, 2**20), (60, 0)])
def test_no_past_at_all(seconds: float, size_bytes: int) -> None:
    store = Store(seconds, size_bytes)
    put(store, 1)
    put(store, 2)
    assert sequences(store) == []
    assert store.latest.snapshot.sequence == 2


def test_what_is_asked_for_of_the_past() -> None:
    store = Store(100, 2**20)
    for sequence in range(1, 11):
        put(store, sequence)
    assert sequences(store) == list(range(1, 11))
    assert sequences(store, duration_seconds=3) == [7, 8, 9, 10]
    assert sequences(store, after=8) == [9, 10]
    assert sequences(store, duration_seconds=5, after=2) == [5, 6, 7, 8, 9, 10]
    assert sequences(store, after=2**64 - 1) == []


def test_what_is_not_to_be_remembered_is_the_latest_all_the_same() -> None:
    store = Store(100, 2**20)
    put(store, 1)
    put(store, 2, remember=False)
    assert store.latest.snapshot.sequence == 2
    assert sequences(store) == [1]


def test_the_past_may_be_read_while_it_changes() -> None:
    store = Store(100, 2**20)
    put(store, 1)
    put(store, 2)
    reading = store.history(0, 0)
    next(reading)
    for sequence in range(3, 300):
        put(store, sequence)
    assert len(list(reading)) == 1


async def test_a_reader_waits_for_the_first_and_then_skips_to_the_latest() -> None:
    store = Store(0, 0)
    reader = asyncio.create_task(store.after(-1))
    await asyncio.sleep(0)
    put(store, 1)
    assert (await reader).snapshot.sequence == 1
    put(store, 2)
    put(store, 3)
    assert (await store.after(1)).snapshot.sequence == 3


async def test_all_waiting_readers_are_woken() -> None:
    store = Store(0, 0)
    put(store, 1)
    readers = [asyncio.create_task(store.after(1)) for _ in range(100)]
    await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    put(store, 2)
    entries = await asyncio.gather(*readers)
    assert {id(entry) for entry in entries} == {id(store.latest)}


async def test_a_reader_that_gives_up_leaves_the_others_waiting() -> None:
    store = Store(0, 0)
    put(store, 1)
    gives_up, stays = asyncio.create_task(store.after(1)), asyncio.create_task(store.after(1))
    await asyncio.sleep(0)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    put(store, 2)
    assert (await stays).snapshot.sequence == 2
