from __future__ import annotations

import itertools
import json
import os
import time
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from neurontools import catalog, model
from neurontools.fleet.summary import HostSummary
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc import neuron_pb2_grpc as api
from neurontools.rpc.convert import from_message
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.running_daemon import MONITOR, Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

Format = pb.RenderDeviceListRequest


@pytest.fixture
def channel(shared_daemon: RunningDaemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{shared_daemon.socket}") as channel:
        yield channel


@pytest.fixture
def monitor(channel: grpc.Channel) -> api.MonitorServiceStub:
    return api.MonitorServiceStub(channel)


def refused(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_a_snapshot_has_everything(monitor: api.MonitorServiceStub, shared_daemon: RunningDaemon) -> None:
    snapshot = from_message(model.Snapshot, monitor.GetSnapshot(pb.GetSnapshotRequest()).snapshot)
    kind = catalog.load("trn1.32xlarge")
    assert snapshot.instance.instance_type == "trn1.32xlarge"
    assert snapshot.source is model.SourceKind.SIMULATED
    assert (len(snapshot.devices), len(snapshot.cores)) == (16, 32)
    assert [core.index for core in snapshot.cores] == list(range(32))
    assert [device.bdf for device in snapshot.devices] == [device.bdf.value for device in kind.devices]
    assert snapshot.daemon_pid == shared_daemon.pid
    assert (snapshot.processes, snapshot.warnings, snapshot.synthetic_load) == ((), (), None)
    assert abs(snapshot.taken_at_seconds - time.monotonic()) < 60
    assert snapshot.host.memory_total_bytes


def test_the_summary_is_that_of_the_snapshots_and_goes_on(monitor: api.MonitorServiceStub) -> None:
    stream = monitor.WatchHostSummary(pb.WatchHostSummaryRequest())
    summaries = [from_message(HostSummary, next(stream).summary) for _ in range(3)]
    stream.cancel()
    sequences = [summary.sequence or 0 for summary in summaries]
    assert sequences == sorted(set(sequences))
    snapshot = from_message(model.Snapshot, monitor.GetSnapshot(pb.GetSnapshotRequest()).snapshot)
    assert summaries[0].instance_type == snapshot.instance.instance_type
    assert summaries[0].free_neuroncore_count == 32
    assert summaries[0].host_name == os.uname().nodename
    assert (summaries[0].taken_at_seconds or 0.0) <= snapshot.taken_at_seconds


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e9])
def test_a_senseless_interval_of_summaries_is_refused(monitor: api.MonitorServiceStub, seconds: float) -> None:
    code, details = refused(
        lambda: next(monitor.WatchHostSummary(pb.WatchHostSummaryRequest(interval_seconds=seconds)))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "interval_seconds" in (details or "")


def test_a_stream_has_every_snapshot_or_those_of_an_interval(monitor: api.MonitorServiceStub) -> None:
    stream = monitor.WatchSnapshots(pb.WatchSnapshotsRequest())
    sequences = [next(stream).snapshot.sequence for _ in range(10)]
    while sequences[-1] - sequences[-10] > 9:  # a reader that is held up skips some
        sequences.append(next(stream).snapshot.sequence)
    stream.cancel()
    assert sequences == sorted(set(sequences))

    def periods() -> list[float]:
        stream = monitor.WatchSnapshots(pb.WatchSnapshotsRequest(interval_seconds=0.3))
        taken = [next(stream).snapshot.taken_at_seconds for _ in range(4)]
        stream.cancel()
        return [later - earlier for earlier, later in itertools.pairwise(taken)]

    wait_until(lambda: min(periods()) >= 0.2)  # what a daemon that is held up sends late is old


def test_a_reader_that_stalled_gets_the_latest(shared_daemon: RunningDaemon) -> None:
    """Flow control lets a few messages into the reader's buffers; after those it is at the front at once."""
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(f"unix:{shared_daemon.socket}", options=options) as channel:
        stream = api.MonitorServiceStub(channel).WatchSnapshots(pb.WatchSnapshotsRequest())
        first = next(stream).snapshot.sequence
        missed = first + 200
        wait_until(lambda: shared_daemon.snapshot().sequence > missed)
        now = shared_daemon.snapshot().sequence
        backlog = 0
        while next(stream).snapshot.sequence < now:
            backlog += 1
        assert backlog < 60, "and not all 200"
        stream.cancel()


def test_the_recent_past(monitor: api.MonitorServiceStub) -> None:
    wait_until(lambda: monitor.GetSnapshot(pb.GetSnapshotRequest()).snapshot.sequence > 30)

    def past(**request: float) -> list[pb.Snapshot]:
        return [reply.snapshot for reply in monitor.ListHistory(pb.ListHistoryRequest(**request))]  # type: ignore[arg-type]

    everything = past()
    sequences = [snapshot.sequence for snapshot in everything]
    assert sequences[0] <= 2
    assert sequences == sorted(set(sequences))
    recent = wait_until(lambda: found if len(found := past(duration_seconds=0.2)) >= 2 else None)
    assert recent[-1].taken_at_seconds - recent[0].taken_at_seconds <= 0.25
    assert recent[0].sequence > sequences[0]
    after = past(after_sequence=sequences[-1])
    assert all(snapshot.sequence > sequences[-1] for snapshot in after)
    assert past(after_sequence=2**64 - 1) == []
    bounded = past(before_sequence=sequences[20], max_snapshots=5)
    assert [snapshot.sequence for snapshot in bounded] == sequences[15:20]
    newest = past(before_sequence=sequences[20], max_snapshots=5, newest_first=True)
    assert newest == bounded[::-1]
    request = pb.ListHistoryRequest(before_sequence=sequences[20], max_snapshots=5, packed=True)
    packed = [reply.packed for reply in monitor.ListHistory(request)]
    assert [pb.GetSnapshotResponse.FromString(zlib.decompress(each)).snapshot for each in packed] == bounded


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 86_401.0])
def test_a_time_that_is_none(monitor: api.MonitorServiceStub, seconds: float) -> None:
    code, text = refused(lambda: next(monitor.WatchSnapshots(pb.WatchSnapshotsRequest(interval_seconds=seconds))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "interval_seconds must be a number of seconds from 0 to 86400"
    code, text = refused(lambda: next(monitor.ListHistory(pb.ListHistoryRequest(duration_seconds=seconds))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text is not None
    assert text.startswith("duration_seconds must be")


def test_a_document_is_what_the_views_make_of_the_snapshot(
    monitor: api.MonitorServiceStub, shared_daemon: RunningDaemon
) -> None:
    snapshot = shared_daemon.snapshot()

    def document(**request: Any) -> str:
        return monitor.RenderDeviceList(pb.RenderDeviceListRequest(**request)).document.decode()

    assert document() == document(format=Format.FORMAT_TABLE) == device_list_table(snapshot)
    assert document(format=Format.FORMAT_JSON) == device_list_json(snapshot)
    assert document(topology=True) == device_list_table(snapshot, topology=True)
    assert document(device_indices=[3, 1]) == device_list_table(snapshot, device_indices=[3, 1])
    assert [device["neuron_device"] for device in json.loads(document(format=2, device_indices=[3]))] == [3]


def test_documents_show_who_holds_cores_at_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.3xlarge", "--interval", "3600")
    attachment = Attachment(daemon)

    def document(**request: Any) -> str:
        reply = daemon.call(f"{MONITOR}/RenderDeviceList", pb.RenderDeviceListRequest(**request))
        return pb.RenderDeviceListResponse.FromString(reply).document.decode()

    assert "RUNTIME" not in document()
    assert "RUNTIME" in document(all_processes=True)
    attachment.attach(core_count=1, runtime_version="2.34.10.0")
    assert "2.34.10.0" in document()
    assert "logical-neuroncore-config: 2" in document()
    assert "logical-neuroncore-config: 1" in document(logical_neuroncore_config=1)
    attachment.close()
    wait_until(lambda: "RUNTIME" not in document())


@pytest.mark.parametrize("index", [16, 2**32 - 1])
def test_a_device_that_the_host_lacks(monitor: api.MonitorServiceStub, index: int) -> None:
    code, text = refused(lambda: monitor.RenderDeviceList(pb.RenderDeviceListRequest(device_indices=[0, index])))
    assert code is grpc.StatusCode.NOT_FOUND
    assert text == f"no device {index}: trn1.32xlarge has devices 0 to 15"


def test_more_devices_than_any_host_has(monitor: api.MonitorServiceStub) -> None:
    code, _ = refused(lambda: monitor.RenderDeviceList(pb.RenderDeviceListRequest(device_indices=[0] * 1025)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_method_that_there_is_not(channel: grpc.Channel) -> None:
    for method in (f"{MONITOR}/GetEverything", "/neurontools.v2.MonitorService/GetSnapshot", "/x/y"):
        ask: Any = channel.unary_unary(method)
        code, _ = refused(partial(ask, b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED


def test_deadlines_are_kept(monitor: api.MonitorServiceStub) -> None:
    stream = monitor.WatchSnapshots(pb.WatchSnapshotsRequest(interval_seconds=3600), timeout=0.3)
    code, _ = refused(lambda: list(stream))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert monitor.GetSnapshot(pb.GetSnapshotRequest(), timeout=HANG_SECONDS).snapshot.sequence
