"""Snapshots: when the hardware is read and ticks come, and what is kept of them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.allocator import CoreAllocator
from neurond.daemon import SnapshotPublisher
from neurond.host import WatchedHost
from neurond.journal.state_files import AuditLog
from neurond.settings import Settings
from neurond.snapshots.store import SnapshotStore, SourceRefresher, TickSchedule
from neurond.sources import DeviceReading
from neurond.sources.simulated import SimulatedSource, simulated_shape
from neurond.system.clocks import SteadyClock

from neurontools import catalog, model
from neurontools.client.packing import unpack
from neurontools.model import Snapshot, SourceKind, health
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import from_message
from neurontools.testing import idle_host
from tests.harness.snapshots import snapshot_of
from tests.harness.waiting import HANG_SECONDS


class _Hardware:
    """A source whose read takes as long as the test wants."""

    kind = SourceKind.SYSFS
    is_slow = True

    def __init__(self) -> None:
        self.host = idle_host("trn1.2xlarge")
        self.instance = self.host.instance
        self.executions_total = 0
        self.may_answer = threading.Event()
        self.reads = 0
        self.fault: Exception | None = None

    def refresh(self) -> None:
        self.may_answer.wait()
        self.reads += 1
        if self.fault is not None:
            raise self.fault

    def read(self) -> DeviceReading:
        cores = tuple(replace(core, executions_total=self.executions_total) for core in self.host.cores)
        return DeviceReading(self.host.devices, cores)


async def test_a_read_that_does_not_end_holds_nobody_up() -> None:
    hardware = _Hardware()
    refresher = SourceRefresher(hardware)
    for _ in range(3):  # asked once, waited for thrice
        await refresher.refresh(0.001)
        assert refresher.warnings[0].startswith("the driver has not answered for ")
    reading = asyncio.create_task(refresher.refresh(HANG_SECONDS))
    await asyncio.sleep(0)
    assert not reading.done(), "the loop runs meanwhile"
    hardware.may_answer.set()
    await reading
    assert (hardware.reads, refresher.warnings) == (1, ())
    await refresher.refresh(HANG_SECONDS)
    assert hardware.reads == 2


async def test_a_fault_is_told_and_the_next_read_made() -> None:
    hardware = _Hardware()
    hardware.may_answer.set()
    hardware.fault = RuntimeError("the moon")
    refresher = SourceRefresher(hardware)
    await refresher.refresh(HANG_SECONDS)
    assert refresher.warnings == ("the devices could not be read: the moon",)
    hardware.fault = None
    await refresher.refresh(HANG_SECONDS)
    assert not refresher.warnings


async def test_a_source_in_memory_needs_no_thread() -> None:
    kind = catalog.load("trn1.2xlarge")
    before = set(threading.enumerate())
    await SourceRefresher(SimulatedSource(kind, CoreAllocator(simulated_shape(kind)))).refresh(HANG_SECONDS)
    assert set(threading.enumerate()) <= before


class _Daemon:
    """Publishes snapshots of the hardware. The test sets the time."""

    def __init__(self, roots: Path) -> None:
        self.hardware = _Hardware()
        self.hardware.may_answer.set()
        self.now_seconds = 1000.0
        root = str(roots)
        settings = Settings("", sysfs_root=root, proc_root=root, dev_root=root, pod_resources_socket=root)
        host = WatchedHost(self.hardware, CoreAllocator(simulated_shape(catalog.load("trn1.2xlarge"))), None)
        self.publisher = SnapshotPublisher(
            settings, host, SteadyClock(), AuditLog(None), None, lambda: self.now_seconds
        )

    async def tick(self, later_seconds: float = 0.0) -> Snapshot:
        """The snapshot in the store after a tick. The tick waits only for hardware that will answer."""
        self.now_seconds += later_seconds
        await self.publisher.refresh(HANG_SECONDS if self.hardware.may_answer.is_set() else 0.0)
        self.publisher.publish(whole=True)
        return from_message(Snapshot, pb.GetSnapshotResponse.FromString(self.publisher.store.latest.message).snapshot)


def _told(snapshot: Snapshot) -> tuple[bool | None, str]:
    found = health.verdicts(snapshot)
    return health.is_healthy(found), health.summary(found, snapshot)


HEALTHY = (True, "1 device is healthy")
UNKNOWN = "health of 1 of 1 devices not known: the state of its devices is more than 3 s old, because "
FAILURE = "a snapshot could not be taken: ValueError: Value out of range: 18446744073709551616"


async def test_a_tick_that_fails_is_told_and_after_three_seconds_nobody_is_called_healthy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = _Daemon(tmp_path)
    await daemon.publisher.publish_first()
    before = await daemon.tick()
    assert (_told(before), before.warnings) == (HEALTHY, ())
    daemon.hardware.executions_total = 2**64  # fits into no message
    soon, late = await daemon.tick(1.0), await daemon.tick(2.1)
    assert (_told(soon), _told(late)) == (HEALTHY, (None, UNKNOWN + FAILURE))
    assert soon.warnings == late.warnings == (FAILURE,)
    assert (late.sequence > soon.sequence > before.sequence, late.taken_at_seconds) == (True, before.taken_at_seconds)
    assert [record.message for record in caplog.records] == [FAILURE], "once"
    daemon.hardware.executions_total = 5
    after = await daemon.tick()
    assert (_told(after), after.warnings, after.cores[0].executions_total) == (HEALTHY, (), 5)


async def test_a_daemon_whose_first_tick_fails_starts_and_knows_nothing(tmp_path: Path) -> None:
    daemon = _Daemon(tmp_path)
    daemon.hardware.executions_total = 2**64
    first = await daemon.publisher.publish_first()
    why = f"its devices were not read yet, because {FAILURE}"
    assert (_told(first), first.warnings) == ((None, f"health of 1 of 1 devices not known: {why}"), (FAILURE,))
    assert _told(await daemon.tick())[0] is None
    daemon.hardware.executions_total = 5
    assert _told(await daemon.tick()) == HEALTHY


async def test_a_driver_that_does_not_answer_is_not_called_healthy_for_long(tmp_path: Path) -> None:
    daemon = _Daemon(tmp_path)
    await daemon.publisher.publish_first()
    daemon.hardware.may_answer.clear()
    assert _told(await daemon.tick(3.0)) == HEALTHY
    late = await daemon.tick(0.1)
    assert _told(late) == (None, f"{UNKNOWN}the driver does not answer")
    assert "the driver has not answered for 0 s: the state of the devices is that old" in late.warnings
    daemon.hardware.may_answer.set()
    assert _told(await daemon.tick()) == HEALTHY


@pytest.mark.parametrize(
    ("now_seconds", "following_seconds"),
    [(100.0, 102.0), (101.9, 102.0), (102.9, 102.0), (103.1, 104.0), (104.9, 104.0), (147.5, 148.0)],
    ids=["at once", "in time", "a little late", "very late", "an interval late", "stopped"],
)
def test_a_tick_that_is_late_is_taken_at_once_and_one_that_was_missed_left_out(
    now_seconds: float, following_seconds: float
) -> None:
    assert TickSchedule(2.0, 50.0).after(100.0, now_seconds) == following_seconds


@given(st.integers(1, 2**22), st.floats(0.05, 60.0), st.integers(0, 1000))
def test_between_two_ticks_there_is_one_report_far_from_either(pid: int, interval_seconds: float, ticks: int) -> None:
    grid = TickSchedule(interval_seconds, 1000.0)
    tick = 1000.0 + ticks * interval_seconds
    since = (grid.report_at(pid) - tick) % interval_seconds
    assert 0.29 * interval_seconds < since < 0.71 * interval_seconds
    assert len({TickSchedule(1.0, 0.0).report_at(pid) for pid in range(4711, 4743)}) == 16, (
        "apart, if they start together"
    )


SNAPSHOT = snapshot_of("trn1.2xlarge")


def put(
    store: SnapshotStore, sequence: int, at_seconds: float | None = None, *, remember: bool = True, noise: int = 0
) -> None:
    seconds = float(sequence) if at_seconds is None else at_seconds
    warning = Random(sequence).randbytes(noise).hex()
    store.put(replace(SNAPSHOT, sequence=sequence, taken_at_seconds=seconds, warnings=(warning,)), remember=remember)


def sequences(store: SnapshotStore, duration_seconds: float = 0.0, after: int = 0) -> list[int]:
    moments = store.history(duration_seconds, after)[::-1]
    messages = unpack(moment.packed for moment in moments)
    found = [pb.ListHistoryResponse.FromString(message).snapshot.sequence for message in messages]
    assert found == [moment.sequence for moment in moments]
    return found


def test_the_latest_message_is_the_snapshot() -> None:
    store = SnapshotStore(60, 2**20)
    with pytest.raises(RuntimeError, match="no snapshot has been taken yet"):
        _ = store.latest
    entry = store.put(SNAPSHOT)
    for response in (pb.GetSnapshotResponse, pb.WatchSnapshotsResponse, pb.ListHistoryResponse):
        assert from_message(model.Snapshot, response.FromString(entry.message).snapshot) == SNAPSHOT


def test_the_past_is_bounded_by_bytes() -> None:
    store = SnapshotStore(1e6, 20_000)
    for sequence in range(1, 101):
        put(store, sequence, noise=1000)
    kept = sequences(store)
    assert kept == list(range(kept[0], 101))
    assert 5 <= len(kept) <= 20, "1000 random bytes, packed, each"
    assert sum(moment.packed.size_bytes for moment in store.history()) <= 20_000
    put(store, 101, noise=30_000)
    assert sequences(store) == [], "one that is larger than the whole past isn't kept"
    put(store, 102)
    assert sequences(store) == [102]


def test_no_past_at_all() -> None:
    for store in (SnapshotStore(0, 2**20), SnapshotStore(60, 0)):
        put(store, 1)
        put(store, 2)
        assert sequences(store) == []
        assert store.latest.snapshot.sequence == 2


def test_a_part_of_the_past() -> None:
    store = SnapshotStore(10, 2**20)
    for sequence in range(1, 31):
        put(store, sequence)
    assert sequences(store) == list(range(20, 31)), "it is bounded by time"
    assert sequences(store, duration_seconds=3) == [27, 28, 29, 30]
    assert sequences(store, after=28) == [29, 30]
    assert sequences(store, duration_seconds=5, after=22) == [25, 26, 27, 28, 29, 30]
    assert sequences(store, after=2**64 - 1) == []
    put(store, 31, remember=False)
    assert store.latest.snapshot.sequence == 31
    assert sequences(store)[-1] == 30
    reading = iter(store.history(0, 28))
    next(reading)
    for sequence in range(32, 300):
        put(store, sequence)
    assert len(list(reading)) == 1, "the past may be read while it changes"


async def test_a_reader_waits_for_the_first_and_then_skips_to_the_latest() -> None:
    store = SnapshotStore(0, 0)
    reader = asyncio.create_task(store.after(-1))
    await asyncio.sleep(0)
    put(store, 1)
    assert (await reader).snapshot.sequence == 1
    put(store, 2)
    put(store, 3)
    assert (await store.after(1)).snapshot.sequence == 3


async def test_all_waiting_readers_are_woken_but_those_that_gave_up() -> None:
    store = SnapshotStore(0, 0)
    put(store, 1)
    gives_up, *readers = (asyncio.create_task(store.after(1)) for _ in range(100))
    await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    put(store, 2)
    entries = await asyncio.gather(*readers)
    assert {id(entry) for entry in entries} == {id(store.latest)}
