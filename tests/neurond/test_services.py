"""The services of the API: what processes that attach and readers get from a daemon, and reports that are refused."""

from __future__ import annotations

import itertools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neurond.allocator import CoreAllocator, InvalidReport, Refusal, RuntimeReport
from neurond.service.runtime_service import read_report
from neurond.snapshots.sampler import Sampler
from neurond.snapshots.store import SnapshotStore
from neurond.sources.simulated import SimulatedSource, simulated_shape

from neurontools import catalog, model
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.fleet.summary import HostSummary
from neurontools.model import ExecutionCounters
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc import neuron_pb2_grpc as api
from neurontools.rpc.call import RpcError, Status
from neurontools.rpc.convert import from_message, to_message
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.examples import examples
from tests.harness.messages import UUID, mended, messages
from tests.harness.running_daemon import MONITOR, RUNTIME, Attachment, RunningDaemon, StartDaemon, connected, shared
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


def test_a_snapshot_has_everything_and_a_summary_its_sums(
    monitor: api.MonitorServiceStub, shared_daemon: RunningDaemon
) -> None:
    stream = monitor.WatchHostSummary(pb.WatchHostSummaryRequest())
    summaries = [from_message(HostSummary, next(stream).summary) for _ in range(3)]
    stream.cancel()
    snapshot = from_message(model.Snapshot, monitor.GetSnapshot(pb.GetSnapshotRequest()).snapshot)
    kind = catalog.load("trn1.32xlarge")
    assert snapshot.instance.instance_type == summaries[0].instance_type == "trn1.32xlarge"
    assert snapshot.source is model.SourceKind.SIMULATED
    assert (len(snapshot.devices), len(snapshot.cores)) == (16, 32)
    assert [core.index for core in snapshot.cores] == list(range(32))
    assert [device.bdf for device in snapshot.devices] == [device.bdf.value for device in kind.devices]
    assert snapshot.daemon_pid == shared_daemon.pid
    assert (snapshot.processes, snapshot.warnings, snapshot.synthetic_load) == ((), (), None)
    assert abs(snapshot.taken_at_seconds - time.monotonic()) < HANG_SECONDS
    assert snapshot.host.memory_total_bytes
    sequences = [summary.sequence or 0 for summary in summaries]
    assert sequences == sorted(set(sequences))
    assert (summaries[0].free_neuroncore_count, summaries[0].host_name) == (32, os.uname().nodename)
    assert (summaries[0].taken_at_seconds or 0.0) <= snapshot.taken_at_seconds


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
        missed = first + 120
        wait_until(lambda: shared_daemon.snapshot().sequence > missed)
        now = shared_daemon.snapshot().sequence
        backlog = 0
        while next(stream).snapshot.sequence < now:
            backlog += 1
        assert backlog < 60, "and not all 120"
        stream.cancel()


def test_the_recent_past(monitor: api.MonitorServiceStub) -> None:
    def listed(**request: float) -> list[pb.Snapshot]:
        return [reply.snapshot for reply in monitor.ListHistory(pb.ListHistoryRequest(**request))]  # type: ignore[arg-type]

    everything = wait_until(lambda: found if len(found := listed()) > 30 else None)
    sequences = [snapshot.sequence for snapshot in everything]
    assert sequences[-1] - sequences[0] >= 28
    assert sequences == sorted(set(sequences))
    recent = wait_until(lambda: found if len(found := listed(duration_seconds=0.2)) >= 2 else None)
    assert recent[-1].taken_at_seconds - recent[0].taken_at_seconds <= 0.25
    assert recent[0].sequence > sequences[0]
    after = listed(after_sequence=sequences[-1])
    assert all(snapshot.sequence > sequences[-1] for snapshot in after)
    assert listed(after_sequence=2**64 - 1) == []
    bounded = listed(before_sequence=sequences[20], max_snapshots=5)
    assert [snapshot.sequence for snapshot in bounded] == sequences[15:20]
    newest = listed(before_sequence=sequences[20], max_snapshots=5, newest_first=True)
    assert newest == bounded[::-1]
    request = pb.ListHistoryRequest(before_sequence=sequences[20], max_snapshots=5, packed=True)
    packed = [reply.packed for reply in monitor.ListHistory(request)]
    assert [pb.GetSnapshotResponse.FromString(zlib.decompress(each)).snapshot for each in packed] == bounded
    request = pb.ListHistoryRequest(before_sequence=sequences[20], max_snapshots=5, blocks=True)
    moments = [moment for reply in monitor.ListHistory(request) for moment in reply.block.moments]
    assert [moment.sequence for moment in moments] == [snapshot.sequence for snapshot in bounded]


def past(daemon: RunningDaemon, age_seconds: float) -> model.Snapshot:
    reply = daemon.call(f"{MONITOR}/GetSnapshot", pb.GetSnapshotRequest(age_seconds=age_seconds))
    return from_message(model.Snapshot, pb.GetSnapshotResponse.FromString(reply).snapshot)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 86_401.0])
def test_times_that_can_not_be_are_refused(monitor: api.MonitorServiceStub, seconds: float) -> None:
    calls: dict[str, list[Callable[[], Any]]] = {
        "interval_seconds": [
            lambda: next(monitor.WatchSnapshots(pb.WatchSnapshotsRequest(interval_seconds=seconds))),
            lambda: next(monitor.WatchHostSummary(pb.WatchHostSummaryRequest(interval_seconds=seconds))),
        ],
        "duration_seconds": [lambda: next(monitor.ListHistory(pb.ListHistoryRequest(duration_seconds=seconds)))],
        "age_seconds": [lambda: monitor.GetSnapshot(pb.GetSnapshotRequest(age_seconds=seconds))],
    }
    for name, each in calls.items():
        for call in each:
            assert refused(call) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name} must be a number of seconds from 0 to 86400",
            )


def test_a_document_is_what_the_views_make_of_the_snapshot(shared_daemon: RunningDaemon) -> None:
    snapshot, document = shared_daemon.snapshot(), shared_daemon.device_list
    assert document() == document(format=Format.FORMAT_TABLE) == document(format=5) == device_list_table(snapshot)
    assert document(format=Format.FORMAT_JSON) == device_list_json(snapshot)
    assert document(topology=True) == device_list_table(snapshot, topology=True)
    assert document(device_indices=[3, 1]) == device_list_table(snapshot, device_indices=[3, 1])
    assert [device["neuron_device"] for device in json.loads(document(format=2, device_indices=[3]))] == [3]


def test_documents_show_who_holds_cores_at_once_and_no_past_is_kept(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.3xlarge", "--interval", "3600", "--history", "0")
    attachment, document = Attachment(daemon), daemon.device_list
    assert "RUNTIME" not in document()
    assert "RUNTIME" in document(all_processes=True)
    attachment.attach(core_count=1, runtime_version="2.34.10.0")
    assert "2.34.10.0" in document()
    assert "logical-neuroncore-config: 2" in document()
    assert "logical-neuroncore-config: 1" in document(logical_neuroncore_config=1)
    assert past(daemon, 60.0).sequence == daemon.snapshot().sequence
    attachment.close()
    wait_until(lambda: "RUNTIME" not in document())


@pytest.mark.slow
def test_calls_that_can_not_be_answered(monitor: api.MonitorServiceStub, channel: grpc.Channel) -> None:
    for index in (16, 2**32 - 1):
        assert refused(partial(monitor.RenderDeviceList, pb.RenderDeviceListRequest(device_indices=[0, index]))) == (
            grpc.StatusCode.NOT_FOUND,
            f"no device {index}: trn1.32xlarge has devices 0-15",
        )
    code, _ = refused(lambda: monitor.RenderDeviceList(pb.RenderDeviceListRequest(device_indices=[0] * 1025)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    for method in (f"{MONITOR}/GetEverything", "/neurontools.v2.MonitorService/GetSnapshot", "/x/y"):
        ask: Any = channel.unary_unary(method)
        assert refused(partial(ask, b""))[0] is grpc.StatusCode.UNIMPLEMENTED
    ask = channel.unary_unary(f"{RUNTIME}/Report")
    for size, code in ((2**20 - 64, grpc.StatusCode.UNAUTHENTICATED), (2**20 + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        request = pb.ReportRequest(token="x" * size).SerializeToString()
        assert refused(partial(ask, request))[0] is code, "a request has at most 1 MiB"


SERVICES = ("neurontools.v1.MonitorService", "neurontools.v1.RuntimeService")


def test_everything_is_healthy_and_described(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for service in ("", *SERVICES):
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(request)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    nothing = health_pb2.HealthCheckRequest(service="nothing")
    assert refused(lambda: health.Check(nothing))[0] is grpc.StatusCode.NOT_FOUND
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {*SERVICES, "grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    for name in SERVICES:
        described = pool.FindServiceByName(name)
        local = pb.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
        assert [method.name for method in described.methods] == [method.name for method in local.methods]
        for method in described.methods:
            assert method.input_type.full_name.startswith("neurontools.v1.")
    assert pool.FindMessageTypeByName("neurontools.v1.Snapshot").fields_by_name["cores"].number == 8


GIB = 2**30
REFUSALS = {Status.INVALID_ARGUMENT, Status.OUT_OF_RANGE, Status.RESOURCE_EXHAUSTED, Status.FAILED_PRECONDITION}
fuzzed = settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def trn2() -> Iterator[RunningDaemon]:
    with shared("--simulate", "trn2.3xlarge", "--interval", "0.02") as daemon:
        yield daemon


@pytest.fixture
def on_trn2(trn2: RunningDaemon) -> Iterator[Attachment]:
    with connected(trn2) as attachment:
        yield attachment


def code_of(call: Any, *arguments: Any, **named: Any) -> tuple[int, str]:
    with pytest.raises(RpcError) as refused:
        call(*arguments, **named)
    return refused.value.code, refused.value.details


def test_what_a_process_gets(on_trn2: Attachment) -> None:
    given_ = on_trn2.attach(visible_cores=pb.CoreRange(first=1, count=2), tag="t", runtime_version="9")
    assert [core.neuroncore_index for core in given_.cores] == [1, 2]
    assert [list(core.core_indices) for core in given_.cores] == [[2, 3], [4, 5]]
    assert {(core.device_index, core.hbm_bytes) for core in given_.cores} == {(0, 24 * GIB)}
    assert (given_.instance_type, given_.logical_neuroncore_config, given_.pid) == ("trn2.3xlarge", 2, os.getpid())
    assert given_.interval_seconds == 0.02
    process = on_trn2.daemon.find(os.getpid())
    assert process is not None
    assert (process.tag, process.runtime_version, process.neuroncore_indices) == ("t", "9", (1, 2))
    assert process.core_indices == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("fields_", "code", "text"),
    [
        ({"core_count": 5}, Status.OUT_OF_RANGE, "NEURON_RT_NUM_CORES=5: this host has 4 NeuronCores"),
        ({"visible_cores": pb.CoreRange(first=2**32 - 1, count=2**32 - 1)}, Status.OUT_OF_RANGE, "NeuronCores 0-3"),
        ({"core_count": 1, "logical_neuroncore_config": 3}, Status.OUT_OF_RANGE, "NEURON_LOGICAL_NC_CONFIG=3"),
        ({"tag": "x" * 256, "core_count": 1}, Status.INVALID_ARGUMENT, "the tag is longer than 255 characters"),
        ({"runtime_version": "x" * 65, "core_count": 1}, Status.INVALID_ARGUMENT, "runtime_version is longer"),
        ({"tag": "no cores"}, Status.INVALID_ARGUMENT, "no cores asked for; set visible_cores, core_count or all"),
    ],
)
def test_an_attach_that_cannot_be_met(on_trn2: Attachment, fields_: dict[str, Any], code: int, text: str) -> None:
    refused, said = code_of(on_trn2.attach, **fields_)
    assert (refused, text in said) == (code, True)
    assert on_trn2.attach(), "what was refused changed nothing"


def test_another_lnc_and_a_second_attach(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    assert code_of(on_trn2.report, pb.Report())[0] == Status.INVALID_ARGUMENT, "it holds nothing yet"
    reply = on_trn2.attach(core_count=3, logical_neuroncore_config=1)
    assert [list(core.core_indices) for core in reply.cores] == [[0], [1], [2]]
    with closing(Attachment(trn2)) as other:
        assert code_of(other.attach) == (
            Status.FAILED_PRECONDITION,
            f"PID {os.getpid()} already holds cores; a process attaches once",
        )


def test_a_report_comes_back_in_the_snapshot(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(visible_cores=pb.CoreRange(first=1, count=2))
    memory = pb.DeviceMemory(tensors_bytes=5 * GIB + 1, constants_bytes=GIB)
    subgraph = pb.Subgraph(index=0, neuroncore_index=1, device_memory=pb.DeviceMemory(constants_bytes=GIB))
    now = trn2.snapshot().taken_at_seconds
    on_trn2.report(pb.Report(measured_at_seconds=now, counted_since_seconds=now))
    assert trn2.next_snapshot().processes[0].training is None
    report = pb.Report(
        measured_at_seconds=now,
        counted_since_seconds=now,
        cores=[pb.ReportedCore(local_index=1, busy_seconds_total=2.0, flop_total=9, executions_total=4, memory=memory)],
        models=[pb.LoadedModel(model_id=7, name="m", uuid=UUID, subgraphs=[subgraph], executions_total=4)],
        host_memory=pb.HostMemory(tensors_bytes=3),
        executions=pb.ExecutionCounters(completed_total=4),
        errors=pb.ErrorCounters(hardware_total=2),
        total_latency_histogram=pb.LatencyHistogram(bucket_indices=[900], bucket_counts=[4], sum_seconds=0.1),
        device_latency_histogram=pb.LatencyHistogram(bucket_indices=[3, 9], bucket_counts=[1, 2], sum_seconds=0.5),
        training=pb.TrainingCounters(steps_total=4),
    )
    on_trn2.report(report)
    snapshot = trn2.next_snapshot()
    (process,) = snapshot.processes
    assert (process.reporting, process.measured_at_seconds, process.counted_since_seconds) == (True, now, now)
    assert (process.executions, process.errors) == (ExecutionCounters(4), model.ErrorCounters(hardware_total=2))
    assert process.total_latency_histogram == model.LatencyHistogram((900,), (4,), 0.1)
    assert process.device_latency_histogram == model.LatencyHistogram((3, 9), (1, 2), 0.5)
    assert process.training == model.TrainingCounters(steps_total=4)
    assert (process.host_memory.tensors_bytes, process.host_memory.constants_bytes) == (3, None), "not told is not 0"
    (loaded,) = process.models
    assert (loaded.model_id, loaded.name, loaded.executions_total) == (7, "m", 4)
    assert (loaded.subgraphs[0].neuroncore_index, loaded.subgraphs[0].device_index) == (2, 0), "of the host"
    two = snapshot.cores[4:6]
    memories = [(core.memory.tensors_bytes, core.memory.collectives_bytes) for core in two]
    assert memories == [(5 * GIB // 2 + 1, None), (5 * GIB // 2, None)]
    assert [core.flop_total for core in two] == [5, 4]
    assert [core.executions_total for core in two] == [4, 4]
    assert [core.busy_seconds_total for core in two] == [2.0, 2.0]
    assert [stack.used_bytes for stack in snapshot.devices[0].hbm_stacks] == [0, 0, 6 * GIB + 1, 0]


def test_memory_beyond_the_hbm_is_refused(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(core_count=1)
    fits = pb.Report(cores=[pb.ReportedCore(memory=pb.DeviceMemory(tensors_bytes=24 * GIB))])
    on_trn2.report(fits)
    fits.cores[0].memory.collectives_bytes = 1
    code, text = code_of(on_trn2.report, fits)
    assert code == Status.RESOURCE_EXHAUSTED
    assert text.startswith(f"out of device memory: PID {os.getpid()} asks for")
    assert trn2.next_snapshot().devices[0].hbm_stacks[0].used_bytes == 24 * GIB


@fuzzed
@given(request=messages(pb.AttachRequest), right_token=st.booleans())
def test_any_attach_over_the_wire(trn2: RunningDaemon, request: pb.AttachRequest, right_token: bool) -> None:
    with connected(trn2) as attachment:
        if right_token:
            request.token = attachment.token
        try:
            reply = pb.AttachResponse.FromString(trn2.call(f"{RUNTIME}/Attach", request))
        except RpcError as refused:
            assert refused.code in REFUSALS | {Status.UNAUTHENTICATED}
            assert set(trn2.owners()) == {None}
        else:
            held = [index for index, owner in enumerate(trn2.owners()) if owner == os.getpid()]
            assert held == [index for core in reply.cores for index in core.core_indices]


@fuzzed
@given(method=st.sampled_from([f"{RUNTIME}/Attach", f"{RUNTIME}/Report"]), data=st.binary(max_size=300))
def test_any_bytes_over_the_wire(trn2: RunningDaemon, method: str, data: bytes) -> None:
    with pytest.raises(RpcError) as refused:
        trn2.call(method, data)
    assert refused.value.code in {Status.UNAUTHENTICATED, Status.INVALID_ARGUMENT}
    if refused.value.code == Status.INVALID_ARGUMENT:
        kind = f"neurontools.v1.{method.rpartition('/')[2]}Request"
        assert refused.value.details.startswith((f"the request is not a {kind}", "no cores asked for", "the tag is"))
    assert trn2.snapshot().processes == ()
    assert "Traceback" not in trn2.log


def test_percentiles_of_more_executions_than_a_float_can_count(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(core_count=1)
    for counts in ({3: 0, 700: 0}, {700: 2**63 - 1}):  # an empty bucket may be listed or not
        histogram = pb.LatencyHistogram(bucket_indices=counts.keys(), bucket_counts=counts.values())
        measured = trn2.snapshot().taken_at_seconds
        on_trn2.report(pb.Report(measured_at_seconds=measured, total_latency_histogram=histogram))
        process = trn2.next_snapshot().processes[0]
    assert process.total_latency is not None
    assert process.total_latency.p0_seconds == process.total_latency.p100_seconds


LARGEST = 2**63 - 1


def read(core_count: int = 2, **fields: Any) -> RuntimeReport:
    return read_report(pb.Report(**fields), core_count, now_seconds=100.0)


def core(**fields: Any) -> dict[str, Any]:
    return {"cores": [pb.ReportedCore(**fields)]}


def loaded(**fields: Any) -> dict[str, Any]:
    return {"models": [pb.LoadedModel(**({"uuid": UUID} | fields))]}


def histogram(indices: list[int], counts: list[int], sum_seconds: float = 0.0) -> dict[str, Any]:
    message = pb.LatencyHistogram(bucket_indices=indices, bucket_counts=counts, sum_seconds=sum_seconds)
    return {"total_latency_histogram": message}


def served(**fields: Any) -> dict[str, Any]:
    return {"served_models": [pb.ServedModel(name="a", **fields)]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"measured_at_seconds": float("nan")}, "measured_at_seconds is not a time"),
        ({"measured_at_seconds": float("inf")}, "measured_at_seconds is not a time"),
        ({"measured_at_seconds": -1.0}, "measured_at_seconds is not a time"),
        ({"measured_at_seconds": 102.0}, "measured_at_seconds lies in the future"),
        (core(busy_seconds_total=float("nan")), "core 0 busy_seconds_total is not a time"),
        (core(busy_seconds_total=-0.1), "core 0 busy_seconds_total is not a time"),
        (core(busy_seconds_total=1e13), "core 0 busy_seconds_total is not a time"),
        (core(flop_total=2**63), "core 0 flop_total is out of range"),
        (core(executions_total=2**64 - 1), "core 0 executions_total is out of range"),
        (core(memory=pb.DeviceMemory(tensors_bytes=2**63)), "core 0 memory.tensors_bytes is out of range"),
        (core(memory=pb.DeviceMemory(tensors_bytes=LARGEST, constants_bytes=LARGEST)), "core 0 memory is out of range"),
        (core(execution_started_at_unix_seconds=float("-inf")), "execution_started_at_unix_seconds is not a time"),
        ({"cores": [pb.ReportedCore(local_index=1)] * 2}, "a core is reported twice"),
        ({"cores": [pb.ReportedCore(local_index=index) for index in range(3)]}, "3 cores reported, 2 held"),
        (loaded(uuid="ABCDEF0123456789" * 2), "a uuid that is not 32 lower-case hexadecimal digits"),
        (loaded(uuid=""), "a uuid that is not 32 lower-case hexadecimal digits"),
        (loaded(name="x" * 1025), "model 0 has a name of more than 1024 characters"),
        (loaded(subgraphs=[pb.Subgraph(neuroncore_index=2)]), "model 0 lies on core 2, the process holds 2"),
        (loaded(subgraphs=[pb.Subgraph()] * 1025), "more than 1024 subgraphs in all models"),
        (loaded(executions_total=2**63), "model 0 is out of range"),
        (loaded(last_execution_at_unix_seconds=float("nan")), "last_execution_at_unix_seconds is not a time"),
        (loaded(subgraphs=[pb.Subgraph(device_memory=pb.DeviceMemory(tensors_bytes=2**63))]), "is out of range"),
        ({"models": [pb.LoadedModel(uuid=UUID)] * 2}, "two models have the same model_id"),
        ({"models": [pb.LoadedModel(uuid=UUID, model_id=index) for index in range(513)]}, "more than 512 models"),
        ({"host_memory": pb.HostMemory(tensors_bytes=2**63)}, "host_memory.tensors_bytes is out of range"),
        ({"executions": pb.ExecutionCounters(timed_out_total=2**63)}, "executions.timed_out_total is out of range"),
        ({"errors": pb.ErrorCounters(hardware_total=2**63)}, "errors.hardware_total is out of range"),
        (histogram([1], []), "total_latency_histogram: 1 indices and 0 counts"),
        (histogram([2784], [1]), "total_latency_histogram: bucket 2784; the last one is 2783"),
        (histogram([3, 3], [1, 1]), "total_latency_histogram: bucket indices must ascend"),
        (histogram([9, 3], [1, 1]), "total_latency_histogram: bucket indices must ascend"),
        (histogram([5000, 3], [1, 1]), "total_latency_histogram: bucket indices must ascend"),
        (histogram([3, 4], [LARGEST, 1]), "total_latency_histogram: counts are out of range"),
        ({"training": pb.TrainingCounters(steps_total=2**63)}, "training.steps_total is out of range"),
        ({"training": pb.TrainingCounters(samples_total=2**63)}, "training.samples_total is out of range"),
        (
            {"training": pb.TrainingCounters(compile_seconds_total=float("nan"))},
            "training.compile_seconds_total is not a time",
        ),
        ({"training": pb.TrainingCounters(host_seconds_total=-1.0)}, "training.host_seconds_total is not a time"),
        (
            {"training": pb.TrainingCounters(compiling_since_seconds=1e11)},
            "training.compiling_since_seconds is later than measured_at_seconds",
        ),
        (
            {"training": pb.TrainingCounters(last_step_at_seconds=1e11)},
            "training.last_step_at_seconds is later than measured_at_seconds",
        ),
        ({"operators": [pb.OperatorTime(name=str(n)) for n in range(18)]}, "more than 17 kinds of operators"),
        ({"operators": [pb.OperatorTime(name="a" * 129)]}, "an operator has a name of more than 128 characters"),
        ({"operators": [pb.OperatorTime(seconds_total=-1.0)]}, "operators.seconds_total is not a time"),
        ({"operators": [pb.OperatorTime(executions_total=2**63)]}, "operators.executions_total is out of range"),
        ({"operators": [pb.OperatorTime(name="a")] * 2}, "a kind of operators is reported twice"),
        ({"advice": [pb.ScriptAdvice()] * 5}, "more than 4 pieces of advice"),
        ({"advice": [pb.ScriptAdvice(place="a" * 401)]}, "advice has a text of more than 400 characters"),
        ({"served_models": [pb.ServedModel(name=str(n)) for n in range(17)]}, "more than 16 served models"),
        ({"served_models": [pb.ServedModel(name="a")] * 2}, "two served models have the same name"),
        ({"served_models": [pb.ServedModel(name="a\x1b")]}, "1 to 128 printable characters"),
        (served(placements=[pb.ModelPlacement()] * 257), "more than 256 placements"),
        (served(placements=[pb.ModelPlacement(neuroncore_index=9)]), "lies on core 9, the process holds"),
        (served(placements=[pb.ModelPlacement(weights_id="a" * 65)]), "a weights_id that is no text of at most 64"),
        (served(placements=[pb.ModelPlacement(load_seconds=-1.0)]), "load_seconds is not a time"),
        (served(placements=[pb.ModelPlacement(weights_bytes=2**63)]), "weights_bytes is out of range"),
        (served(requests_total=2**63), "requests_total is out of range"),
        (served(queue_wait_seconds_total=float("inf")), "queue_wait_seconds_total is not a time"),
        (served(last_request_at_seconds=1e11), "last_request_at_seconds is later than measured_at_seconds"),
        (
            served(first_token_histogram=pb.LatencyHistogram(bucket_indices=[2784], bucket_counts=[1])),
            "first_token_histogram: bucket 2784",
        ),
        (histogram([3], [1], float("nan")), "total_latency_histogram sum_seconds is not a time"),
    ],
)
def test_what_is_out_of_its_range_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidReport) as refused:
        read(**fields)
    assert text in str(refused.value)


def test_a_huge_report_is_refused_before_it_is_unpacked() -> None:
    """An empty subgraph is 2 bytes on the wire, and several hundred as a part of the model."""
    models = [pb.LoadedModel(model_id=index, uuid=UUID, subgraphs=[pb.Subgraph()] * 1024) for index in range(100)]
    with pytest.raises(InvalidReport, match="more than 1024 subgraphs in all models"):
        read(models=models)


reports = messages(pb.Report)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(200))
def test_whatever_is_taken_can_be_shown(data: st.DataObject) -> None:
    host = CoreAllocator(simulated_shape(catalog.load("trn2.3xlarge")))
    source = SimulatedSource(catalog.load("trn2.3xlarge"), host)
    sampler = Sampler(source, host, None, 1.0)
    store = SnapshotStore(60, 2**20)
    for token in "ab":
        host.enter(token, 2**22 + 1, 0, 1.0)
        host.attach(token, CoreRequest(0, 2))
        for _ in range(2):
            message = pb.Report.FromString(data.draw(reports | reports.map(mended)).SerializeToString())
            before = host.find_lease(token).report
            try:
                report = read_report(message, 2, now_seconds=1e12)
                host.report(token, report)
            except Refusal:
                assert host.find_lease(token).report is before
            else:
                assert host.find_lease(token).report is report
            store.put(sampler.sample())
        host.leave(token)
        store.put(sampler.sample(whole=False))
    shown = pb.GetSnapshotResponse.FromString(store.latest.message).snapshot
    assert to_message(from_message(model.Snapshot, shown)) == shown
