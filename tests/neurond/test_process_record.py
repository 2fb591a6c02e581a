from __future__ import annotations

import pytest
from neurond.ownership.holding import Holding, Report
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape
from neurond.snapshots.process_record import process_record
from neurond.system.processes import ProcessFacts

from neurontools.model import (
    DeviceMemory,
    ErrorCounters,
    ExecutionCounters,
    HostMemory,
    LatencyHistogram,
    LoadedModel,
    Process,
    Subgraph,
    TrainingCounters,
)
from neurontools.nrt.core_request import CoreRequest

TRN2 = Shape(2, 8, 4, 1000, 2, (1, 2))
FACTS = ProcessFacts("ada", "python train.py", 900.0, 4096, 3.5, 0.5)


def held(request: CoreRequest) -> Holding:
    ledger = Ledger(TRN2)
    ledger.enter("secret", 71, 1000, 950.0)
    return ledger.attach("secret", request, "job", "2.34")


def recorded(holding: Holding, now_seconds: float = 0.0, interval_seconds: float = 1.0) -> Process:
    return process_record(holding, FACTS, TRN2, now_seconds, interval_seconds)


def test_before_its_first_report_a_process_is_who_it_is_and_what_it_holds() -> None:
    assert recorded(held(CoreRequest(3, 2))) == Process(
        pid=71,
        uid=1000,
        user="ada",
        command="python train.py",
        tag="job",
        runtime_version="2.34",
        started_at_unix_seconds=900.0,
        attached_at_unix_seconds=950.0,
        synthetic=False,
        logical_neuroncore_config=2,
        core_indices=(6, 7, 8, 9),
        neuroncore_indices=(3, 4),
        device_indices=(0, 1),
        resident_bytes=4096,
        cpu_user_seconds_total=3.5,
        cpu_system_seconds_total=0.5,
    )


def test_a_report_is_told_as_it_came() -> None:
    holding = held(CoreRequest(0, 1))
    histogram, device_histogram = LatencyHistogram((5,), (9,), 1.0), LatencyHistogram((4,), (9,), 0.5)
    holding.report = Report(
        measured_at_seconds=10.0,
        cores={},
        host_memory=HostMemory(tensors_bytes=7),
        executions=ExecutionCounters(9),
        errors=ErrorCounters(2),
        total_latency_histogram=histogram,
        device_latency_histogram=device_histogram,
        training=TrainingCounters(steps_total=4),
        counted_since_seconds=2.5,
    )
    process = recorded(holding, 11.0)
    assert process.pid == 71
    assert process.host_memory == HostMemory(tensors_bytes=7)
    assert (process.executions, process.errors) == (ExecutionCounters(9), ErrorCounters(2))
    assert (process.total_latency_histogram, process.device_latency_histogram) == (histogram, device_histogram)
    assert process.training == TrainingCounters(steps_total=4)
    assert (process.measured_at_seconds, process.reporting, process.counted_since_seconds) == (10.0, True, 2.5)


@pytest.mark.parametrize(
    ("interval_seconds", "last_second"), [(0.05, 3.0), (1.0, 3.0), (5.0, 15.0)], ids=["fast", "usual", "slow"]
)
def test_a_process_is_silent_after_three_seconds_and_three_intervals(
    interval_seconds: float, last_second: float
) -> None:
    holding = held(CoreRequest(0, 1))
    holding.report = Report(100.0, {})
    assert recorded(holding, 100.0 + last_second, interval_seconds).reporting
    assert not recorded(holding, 100.1 + last_second, interval_seconds).reporting


@pytest.mark.parametrize(
    ("request_", "cores", "devices"),
    [
        (CoreRequest(3, 2), (3, 4), (0, 1)),
        (CoreRequest(3, 2, 1), (3, 4), (0, 0)),
        (CoreRequest(7, 2, 1), (7, 8), (0, 1)),
    ],
    ids=["LNC 2", "LNC 1", "LNC 1 across devices"],
)
def test_a_model_is_placed_on_the_cores_of_the_host(
    request_: CoreRequest, cores: tuple[int, ...], devices: tuple[int, ...]
) -> None:
    holding = held(request_)
    memory, host_memory = DeviceMemory(tensors_bytes=5), HostMemory(tensors_bytes=6)
    own = tuple(Subgraph(index, index, 0, memory, host_memory) for index in (0, 1))
    holding.report = Report(1.0, {}, models=(LoadedModel(10001, "m.neff", "0" * 32, True, own, 8, 9.0),))
    (model,) = recorded(holding).models
    assert (model.model_id, model.name, model.running, model.executions_total) == (10001, "m.neff", True, 8)
    assert [part.index for part in model.subgraphs] == [0, 1]
    assert tuple(part.neuroncore_index for part in model.subgraphs) == cores
    assert tuple(part.device_index for part in model.subgraphs) == devices
    assert {(part.device_memory, part.host_memory) for part in model.subgraphs} == {(memory, host_memory)}
