from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neurond.ownership.holding import CoreReport, Report
from neurond.ownership.ledger import InvalidReport, Ledger, Refusal
from neurond.service.report_reader import read_report
from neurond.snapshots.sampler import Sampler
from neurond.snapshots.store import Store
from neurond.sources.simulated import SimulatedSource, shape_of

from neurontools import catalog, model
from neurontools.nrt.core_request import CoreRequest
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import from_message, to_message
from tests.harness.examples import examples
from tests.harness.messages import UUID, mended, messages

LARGEST = 2**63 - 1


def read(core_count: int = 2, **fields: Any) -> Report:
    return read_report(pb.Report(**fields), core_count, now_seconds=100.0)


def test_a_report_as_a_process_sends_it() -> None:
    memory = pb.DeviceMemory(tensors_bytes=5, constants_bytes=0)
    report = read_report(
        pb.Report(
            measured_at_seconds=99.5,
            cores=[pb.ReportedCore(local_index=1, busy_seconds_total=2.5, flop_total=7, memory=memory)],
            models=[pb.LoadedModel(model_id=1, name="a.neff", uuid=UUID, subgraphs=[pb.Subgraph(neuroncore_index=1)])],
            executions=pb.ExecutionCounters(completed_total=3),
            total_latency_histogram=pb.LatencyHistogram(bucket_indices=[3, 9], bucket_counts=[1, 2], sum_seconds=0.5),
        ),
        2,
        100.0,
    )
    assert report.measured_at_seconds == 99.5
    assert report.cores == {1: CoreReport(2.5, 7, 0, from_message(model.DeviceMemory, memory))}
    assert report.cores[1].memory.tensors_bytes == 5
    assert report.cores[1].memory.constants_bytes == 0
    assert report.cores[1].memory.collectives_bytes is None, "not told is not 0"
    assert report.models[0].subgraphs[0].neuroncore_index == 1
    assert report.executions == model.ExecutionCounters(completed_total=3)
    assert report.total_latency_histogram == model.LatencyHistogram((3, 9), (1, 2), 0.5)


def test_training_counters_are_there_when_they_are_told() -> None:
    assert read().training is None
    told = read(training=pb.TrainingCounters(steps_total=4)).training
    assert told == model.TrainingCounters(steps_total=4, samples_total=None)


def core(**fields: Any) -> dict[str, Any]:
    return {"cores": [pb.ReportedCore(**fields)]}


def loaded(**fields: Any) -> dict[str, Any]:
    return {"models": [pb.LoadedModel(**({"uuid": UUID} | fields))]}


def histogram(indices: list[int], counts: list[int], sum_seconds: float = 0.0) -> dict[str, Any]:
    message = pb.LatencyHistogram(bucket_indices=indices, bucket_counts=counts, sum_seconds=sum_seconds)
    return {"total_latency_histogram": message}


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
        (
            core(memory=pb.DeviceMemory(tensors_bytes=LARGEST, constants_bytes=LARGEST)),
            "core 0 memory is out of range",
        ),
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


@given(st.data())
@settings(max_examples=examples(300))
def test_whatever_is_taken_can_be_shown(data: st.DataObject) -> None:
    """Reports of two owners, one after the other: refused, or in the next snapshot, which readers can be sent."""
    host = Ledger(shape_of(catalog.load("trn2.3xlarge")))
    source = SimulatedSource(catalog.load("trn2.3xlarge"), host)
    sampler = Sampler(source, host, None, 1.0)
    store = Store(60, 2**20)
    for token in "ab":
        host.enter(token, 2**22 + 1, 0, 1.0)
        host.attach(token, CoreRequest(0, 2))
        for _ in range(2):
            message = pb.Report.FromString(data.draw(reports | reports.map(mended)).SerializeToString())
            before = host.known(token).report
            try:
                report = read_report(message, 2, now_seconds=1e12)
                host.report(token, report)
            except Refusal:
                assert host.known(token).report is before
            else:
                assert host.known(token).report is report
            store.put(sampler.sample())
        host.leave(token)
        store.put(sampler.sample(whole=False))
    shown = pb.GetSnapshotResponse.FromString(store.latest.message).snapshot
    assert to_message(from_message(model.Snapshot, shown)) == shown
