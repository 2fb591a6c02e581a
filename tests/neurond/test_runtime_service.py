from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.call import RpcError, Status
from tests.harness.examples import examples
from tests.harness.messages import UUID, mended, messages
from tests.harness.paths import ATTACHED_CHILD
from tests.harness.running_daemon import RUNTIME, Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

GIB = 2**30
REFUSALS = {Status.INVALID_ARGUMENT, Status.OUT_OF_RANGE, Status.RESOURCE_EXHAUSTED, Status.FAILED_PRECONDITION}
fuzzed = settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))


@pytest.fixture
def trn2(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn2.3xlarge", "--interval", "0.02")


@pytest.fixture
def on_trn2(trn2: RunningDaemon) -> Iterator[Attachment]:
    attachment = Attachment(trn2)
    yield attachment
    attachment.close()


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


def test_another_lnc_than_the_hosts(on_trn2: Attachment) -> None:
    given_ = on_trn2.attach(core_count=3, logical_neuroncore_config=1)
    assert [list(core.core_indices) for core in given_.cores] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("fields_", "code", "text"),
    [
        ({"core_count": 5}, Status.OUT_OF_RANGE, "NEURON_RT_NUM_CORES=5: this host has 4 NeuronCores"),
        ({"core_count": 0}, Status.OUT_OF_RANGE, "NEURON_RT_NUM_CORES=0"),
        ({"visible_cores": pb.CoreRange(first=4, count=1)}, Status.OUT_OF_RANGE, "NEURON_RT_VISIBLE_CORES=4-4"),
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


def test_cores_of_others(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, str(ATTACHED_CHILD), trn2.socket, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip()
        code, text = code_of(on_trn2.attach)
        other.kill()
    assert code == Status.RESOURCE_EXHAUSTED
    assert text == (
        "Logical Neuron Core(s) not available - Requested:lnc0-lnc3 Available:3 Logical Core size:2 "
        f"(cores busy, ret=-16); held by PID {other.pid}; end them or ask for other cores"
    )


def test_calls_without_a_token(trn2: RunningDaemon) -> None:
    for method, request in (
        ("Attach", pb.AttachRequest(token="no", all_cores=True)),
        ("Report", pb.ReportRequest(token="")),
    ):
        code, text = code_of(trn2.call, f"{RUNTIME}/{method}", request)
        assert code == Status.UNAUTHENTICATED
        assert text == (
            "no process with this token is attached; connect to the attach socket and keep the connection open"
        )


def test_a_report_comes_back_in_the_snapshot(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(visible_cores=pb.CoreRange(first=1, count=1))
    memory = pb.DeviceMemory(tensors_bytes=5 * GIB + 1, constants_bytes=GIB)
    subgraph = pb.Subgraph(index=0, neuroncore_index=0, device_memory=pb.DeviceMemory(constants_bytes=GIB))
    report = pb.Report(
        measured_at_seconds=trn2.snapshot().taken_at_seconds,
        cores=[pb.ReportedCore(busy_seconds_total=2.0, flop_total=9, executions_total=4, memory=memory)],
        models=[pb.LoadedModel(model_id=7, name="m", uuid=UUID, subgraphs=[subgraph], executions_total=4)],
        host_memory=pb.HostMemory(tensors_bytes=3),
        executions=pb.ExecutionCounters(completed_total=4),
        total_latency_histogram=pb.LatencyHistogram(bucket_indices=[900], bucket_counts=[4], sum_seconds=0.1),
    )
    on_trn2.report(report)
    snapshot = trn2.next_snapshot()
    (process,) = snapshot.processes
    assert process.reporting
    assert process.executions is not None
    assert process.executions.completed_total == 4
    assert process.host_memory.tensors_bytes == 3
    assert process.host_memory.constants_bytes is None
    (loaded,) = process.models
    assert (loaded.model_id, loaded.name, loaded.executions_total) == (7, "m", 4)
    assert (loaded.subgraphs[0].neuroncore_index, loaded.subgraphs[0].device_index) == (1, 0), "of the host"
    two = snapshot.cores[2:4]
    assert [core.memory.tensors_bytes for core in two] == [5 * GIB // 2 + 1, 5 * GIB // 2]
    assert [core.flop_total for core in two] == [5, 4]
    assert [core.executions_total for core in two] == [4, 4]
    assert [stack.used_bytes for stack in snapshot.devices[0].hbm_stacks] == [0, 6 * GIB + 1, 0, 0]


def test_memory_beyond_the_hbm_is_refused_with_a_table(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(core_count=1)
    fits = pb.Report(cores=[pb.ReportedCore(memory=pb.DeviceMemory(tensors_bytes=24 * GIB))])
    on_trn2.report(fits)
    fits.cores[0].memory.collectives_bytes = 1
    code, text = code_of(on_trn2.report, fits)
    assert code == Status.RESOURCE_EXHAUSTED
    headline, titles, held, asked = text.splitlines()
    assert headline.startswith(f"out of device memory: PID {os.getpid()} asks for")
    assert titles.split() == ["PID", "NEURONCORES", "BYTES", "SIZE"]
    assert held.split()[:3] == [str(os.getpid()), "0-0", str(24 * GIB)]
    assert asked.split()[3] == str(24 * GIB + 1)
    assert trn2.next_snapshot().devices[0].hbm_stacks[0].used_bytes == 24 * GIB


def test_a_report_before_attach(on_trn2: Attachment) -> None:
    assert code_of(on_trn2.report, pb.Report())[0] == Status.INVALID_ARGUMENT


def told(process: model.Process | None) -> dict[str, Any]:
    """What a process reported of itself."""
    names = {"models", "executions", "errors", "total_latency_histogram", "device_latency_histogram", "host_memory"}
    assert process is not None
    return {field.name: getattr(process, field.name) for field in fields(process) if field.name in names}


def attached_to(daemon: RunningDaemon, core_count: int = 2) -> Attachment:
    wait_until(lambda: daemon.snapshot().processes == ())
    attachment = Attachment(daemon)
    attachment.attach(core_count=core_count)
    return attachment


@fuzzed
@given(first=messages(pb.Report).map(mended), second=messages(pb.Report))
def test_any_report_over_the_wire(shared_daemon: RunningDaemon, first: pb.Report, second: pb.Report) -> None:
    attachment = attached_to(shared_daemon)
    try:
        for report in (first, second):
            before = told(shared_daemon.next_snapshot(1).processes[0])
            try:
                attachment.report(report)
            except RpcError as refused:
                assert refused.code in REFUSALS
                assert told(shared_daemon.next_snapshot(1).processes[0]) == before
            else:
                now = told(shared_daemon.next_snapshot(1).processes[0])
                assert now["executions"].completed_total == report.executions.completed_total
                assert len(now["models"]) == len(report.models)
    finally:
        attachment.close()


@fuzzed
@given(request=messages(pb.AttachRequest), right_token=st.booleans())
def test_any_attach_over_the_wire(shared_daemon: RunningDaemon, request: pb.AttachRequest, right_token: bool) -> None:
    wait_until(lambda: shared_daemon.snapshot().processes == ())
    attachment = Attachment(shared_daemon)
    try:
        if right_token:
            request.token = attachment.token
        try:
            reply = pb.AttachResponse.FromString(shared_daemon.call(f"{RUNTIME}/Attach", request))
        except RpcError as refused:
            assert refused.code in REFUSALS | {Status.UNAUTHENTICATED}
            assert set(shared_daemon.owners()) == {None}
        else:
            held = [index for index, owner in enumerate(shared_daemon.owners()) if owner == os.getpid()]
            assert held == [index for core in reply.cores for index in core.core_indices]
    finally:
        attachment.close()


@fuzzed
@given(method=st.sampled_from([f"{RUNTIME}/Attach", f"{RUNTIME}/Report"]), data=st.binary(max_size=300))
def test_any_bytes_over_the_wire(shared_daemon: RunningDaemon, method: str, data: bytes) -> None:
    with pytest.raises(RpcError) as refused:
        shared_daemon.call(method, data)
    assert refused.value.code in {Status.UNAUTHENTICATED, Status.INVALID_ARGUMENT}
    if refused.value.code == Status.INVALID_ARGUMENT:
        kind = f"neurontools.v1.{method.rpartition('/')[2]}Request"
        assert refused.value.details.startswith((f"the request is not a {kind}", "no cores asked for", "the tag is"))
    assert shared_daemon.snapshot().processes == ()
    assert "Traceback" not in shared_daemon.log


@fuzzed
@given(request=messages(pb.RenderDeviceListRequest))
def test_any_request_for_a_document(shared_daemon: RunningDaemon, request: pb.RenderDeviceListRequest) -> None:
    try:
        reply = shared_daemon.call("/neurontools.v1.MonitorService/RenderDeviceList", request)
    except RpcError as refused:
        assert refused.code in {Status.NOT_FOUND, Status.INVALID_ARGUMENT}
    else:
        assert pb.RenderDeviceListResponse.FromString(reply).document.startswith((b"instance-type: ", b"["))


@pytest.mark.parametrize(
    "report",
    [
        pb.Report(models=[pb.LoadedModel(model_id=index, uuid=UUID) for index in range(513)]),
        pb.Report(models=[pb.LoadedModel(uuid=UUID, name="x" * 900_000)]),
        pb.Report(models=[pb.LoadedModel(uuid=UUID, subgraphs=[pb.Subgraph()] * 400_000)]),
        pb.Report(cores=[pb.ReportedCore()] * 400_000),
        pb.Report(total_latency_histogram=pb.LatencyHistogram(bucket_indices=[0] * 900_000)),
        pb.Report(models=[pb.LoadedModel(uuid=UUID, name="x" * 1_100_000)]),
    ],
    ids=["models", "name", "subgraphs", "cores", "buckets", "more than 1 MiB"],
)
def test_huge_reports_are_refused_and_leave_no_trace(shared_daemon: RunningDaemon, report: pb.Report) -> None:
    attachment = attached_to(shared_daemon)
    with pytest.raises(RpcError) as refused:
        attachment.report(report)
    assert refused.value.code in {Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED}
    process = shared_daemon.next_snapshot().processes[0]
    assert (process.models, process.reporting) == ((), False)
    attachment.close()


def test_owners_whose_counters_do_not_fit_together(trn2: RunningDaemon) -> None:
    for _ in range(4):
        attachment = attached_to(trn2, core_count=1)
        attachment.report(pb.Report(cores=[pb.ReportedCore(flop_total=2**63 - 1, executions_total=2**63 - 1)]))
        assert trn2.next_snapshot().cores[0].executions_total == 2**63 - 1
        attachment.close()


def test_percentiles_of_more_executions_than_a_float_can_count(trn2: RunningDaemon, on_trn2: Attachment) -> None:
    on_trn2.attach(core_count=1)
    for count in (0, 2**63 - 1):
        histogram = pb.LatencyHistogram(bucket_indices=[3, 700], bucket_counts=[0, count])
        measured = trn2.snapshot().taken_at_seconds
        on_trn2.report(pb.Report(measured_at_seconds=measured, total_latency_histogram=histogram))
        process = trn2.next_snapshot().processes[0]
    assert process.total_latency is not None
    assert process.total_latency.p0_seconds == process.total_latency.p100_seconds
