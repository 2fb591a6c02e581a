"""What a process did, as its reports have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import DeviceMemory, HostMemory, TrainingCounters
from neurontools.model.latency import bucket_index
from neurontools.runtime.reporting.accounts import (
    LARGEST_BYTES,
    Accounts,
)
from neurontools.runtime.reporting.kinds import ErrorKind, Outcome
from tests.harness.account_reports import UNIX, begin, end, report_of


def test_execution_is_counted_on_its_core() -> None:
    accounts = Accounts(2)
    started = begin(accounts, 10.0, core=1)
    accounts.end(started, 10.5, 7_000, Outcome.COMPLETED, 0.25)
    report = report_of(accounts, 11.0)
    idle, core = report.cores
    assert (core.busy_seconds_total, core.flop_total, core.executions_total) == (0.5, 7_000, 1)
    assert core.last_execution_at_unix_seconds == UNIX + 10.5
    assert not core.HasField("execution_started_at_unix_seconds")
    assert (idle.busy_seconds_total, idle.flop_total, idle.executions_total) == (0.0, 0, 0)
    assert not idle.HasField("last_execution_at_unix_seconds")
    assert report.measured_at_seconds == 11.0
    assert report.executions.completed_total == 1
    assert list(report.device_latency_histogram.bucket_indices) == [bucket_index(0.5)]
    assert list(report.total_latency_histogram.bucket_indices) == [bucket_index(0.75)]
    assert report.device_latency_histogram.sum_seconds == 0.5
    assert report.total_latency_histogram.sum_seconds == 0.75


def test_execution_in_flight_is_busy_until_now() -> None:
    accounts = Accounts(1)
    started = begin(accounts, 10.0)
    core = report_of(accounts, 12.0, 1).cores[0]
    assert core.busy_seconds_total == 2.0
    assert core.execution_started_at_unix_seconds == UNIX + 10.0
    assert core.executions_total == 0
    end(accounts, started, 13.0)
    core = report_of(accounts, 20.0, 1).cores[0]
    assert core.busy_seconds_total == 3.0
    assert not core.HasField("execution_started_at_unix_seconds")


def test_overlapping_executions_are_not_busy_twice() -> None:
    accounts = Accounts(1)
    first, second = begin(accounts, 1.0), begin(accounts, 2.0)
    end(accounts, first, 3.0)
    assert report_of(accounts, 3.5, 1).cores[0].execution_started_at_unix_seconds == UNIX + 2.0
    end(accounts, second, 4.0)
    third = begin(accounts, 6.0)
    end(accounts, third, 7.0)
    assert report_of(accounts, 9.0, 1).cores[0].busy_seconds_total == 4.0


def test_notes_that_come_late_count_no_time_twice_and_never_take_any_back() -> None:
    accounts = Accounts(1)
    first = begin(accounts, 1.0)
    assert report_of(accounts, 5.0, 1).cores[0].busy_seconds_total == 4.0
    end(accounts, first, 4.5)  # ended before that report was made, noted after
    second = begin(accounts, 4.0)
    end(accounts, second, 6.0)
    assert report_of(accounts, 9.0, 1).cores[0].busy_seconds_total == 5.0


@pytest.mark.parametrize("outcome", Outcome)
def test_outcomes_and_which_of_them_have_a_latency(outcome: Outcome) -> None:
    accounts = Accounts(1)
    end(accounts, begin(accounts, 1.0), 2.0, outcome)
    report = report_of(accounts, 3.0, 1)
    assert getattr(report.executions, f"{outcome}_total") == 1
    assert sum(value for _, value in report.executions.ListFields()) == 1
    with_result = outcome.value.startswith("completed")
    assert sum(report.device_latency_histogram.bucket_counts) == with_result
    assert sum(report.total_latency_histogram.bucket_counts) == with_result


def test_memory_of_models_counts_in_their_cores_and_goes_with_them() -> None:
    accounts = Accounts(2)
    handle = object()
    memory = {0: DeviceMemory(constants_bytes=100), 1: DeviceMemory(constants_bytes=200, model_code_bytes=None)}
    accounts.load(handle, "m", None, memory, HostMemory(dma_buffers_bytes=5))
    accounts.add_memory(0, "tensors_bytes", 30)
    accounts.add_memory(0, "constants_bytes", 1)
    accounts.set_host_memory("dma_buffers_bytes", 10)
    report = report_of(accounts, 1.0)
    assert (report.cores[0].memory.constants_bytes, report.cores[0].memory.tensors_bytes) == (101, 30)
    assert report.cores[1].memory.constants_bytes == 200
    assert report.host_memory.dma_buffers_bytes == 15
    model = report.models[0]
    assert [subgraph.neuroncore_index for subgraph in model.subgraphs] == [0, 1]
    assert [subgraph.device_memory.constants_bytes for subgraph in model.subgraphs] == [100, 200]
    assert not model.subgraphs[1].device_memory.HasField("model_code_bytes")
    assert [subgraph.host_memory.dma_buffers_bytes for subgraph in model.subgraphs] == [5, 0]
    accounts.unload(handle)
    report = report_of(accounts, 2.0)
    assert report.cores[0].memory.constants_bytes == 1
    assert report.cores[1].memory.constants_bytes == 0
    assert report.host_memory.dma_buffers_bytes == 10
    assert not report.models


def test_model_has_identity() -> None:
    accounts = Accounts(1)
    accounts.load(1, "same", None, {}, HostMemory())
    accounts.load(2, "same", None, {}, HostMemory())
    accounts.load(3, "\udc80" + "x" * 2000, "0123ABCD-0123-abcd-0123-abcd0123abcd", {}, HostMemory())
    accounts.load(4, "bad uuid", "../../etc/passwd", {}, HostMemory())
    first, second, third, fourth = report_of(accounts, 1.0, 1).models
    assert [first.model_id, second.model_id, third.model_id] == [10001, 10002, 10003]
    assert first.uuid == second.uuid != fourth.uuid
    assert third.uuid == "0123abcd0123abcd0123abcd0123abcd"
    for uuid in (first.uuid, fourth.uuid):
        assert len(uuid) == 32
        assert set(uuid) <= set("0123456789abcdef")
    assert len(third.name) == 1024
    third.SerializeToString()


def test_model_runs_when_it_executed_since_the_last_report_that_arrived() -> None:
    accounts = Accounts(1)
    accounts.load("m", "m", None, {}, HostMemory())

    def running(*, arrived: bool) -> bool:
        answer = report_of(accounts, 9.0, 1).models[0].running
        if arrived:
            accounts.arrived()
        return answer

    assert not running(arrived=True)
    started = begin(accounts, 1.0, model="m")
    assert running(arrived=True)
    assert running(arrived=True)  # still in flight
    end(accounts, started, 2.0)
    assert running(arrived=False)
    assert running(arrived=True)  # the daemon has not heard of it yet
    assert not running(arrived=True)
    report_of(accounts, 9.0, 1)
    end(accounts, begin(accounts, 3.0, model="m"), 4.0)  # while a report is under way
    accounts.arrived()
    assert running(arrived=True)


def test_execution_of_an_unloaded_model_is_counted() -> None:
    accounts = Accounts(1)
    accounts.load("m", "m", None, {}, HostMemory())
    started = begin(accounts, 1.0, model="m")
    accounts.unload("m")
    end(accounts, started, 2.0)
    assert report_of(accounts, 3.0, 1).executions.completed_total == 1


def test_errors_are_counted_by_kind() -> None:
    accounts = Accounts(1)
    for kind in (*ErrorKind, ErrorKind.HARDWARE):
        accounts.add_error(kind)
    errors = report_of(accounts, 1.0, 1).errors
    assert errors.generic_total == errors.numerical_total == errors.runtime_total == 1
    assert errors.hardware_total == 2


def test_memory_given_back_before_it_was_taken_is_none_in_use() -> None:
    accounts = Accounts(1)
    accounts.add_memory(0, "tensors_bytes", -10)
    assert report_of(accounts, 1.0, 1).cores[0].memory.tensors_bytes == 0
    accounts.add_memory(0, "tensors_bytes", 10)
    accounts.add_memory(0, "tensors_bytes", 5)
    assert report_of(accounts, 1.0, 1).cores[0].memory.tensors_bytes == 5


def test_every_report_says_since_when_is_counted() -> None:
    assert [report_of(Accounts(1, since), 9.0, 1).counted_since_seconds for since in (0.0, 2.5)] == [0.0, 2.5]
    assert report_of(Accounts(1), 9.0, 1).counted_since_seconds == 0.0


def test_a_model_counts_its_executions() -> None:
    accounts = Accounts(1)
    accounts.load("m", "m", None, {}, HostMemory())
    model = report_of(accounts, 1.0, 1).models[0]
    assert (model.executions_total, model.HasField("last_execution_at_unix_seconds")) == (0, False)
    for at in (1.0, 3.0):
        end(accounts, begin(accounts, at, model="m"), at + 1.0)
    model = report_of(accounts, 5.0, 1).models[0]
    assert (model.executions_total, model.last_execution_at_unix_seconds) == (2, UNIX + 4.0)


def test_an_execution_that_ends_before_it_began_took_no_time() -> None:
    accounts = Accounts(1)
    end(accounts, begin(accounts, 2.0), 1.0)
    report = report_of(accounts, 3.0, 1)
    assert list(report.device_latency_histogram.bucket_indices) == [0]
    assert report.device_latency_histogram.sum_seconds == 0.0
    assert report.cores[0].busy_seconds_total == 0.0


def test_latencies_are_told_by_bucket_in_their_order() -> None:
    accounts = Accounts(1)
    for seconds in (0.5, 0.001, 0.5):
        end(accounts, begin(accounts, 1.0), 1.0 + seconds)
    told = report_of(accounts, 2.0, 1).device_latency_histogram
    assert list(told.bucket_indices) == sorted(told.bucket_indices)
    assert list(told.bucket_counts) == [1, 2]
    assert told.sum_seconds == pytest.approx(1.001)


def test_levels_are_set_apart_from_those_of_models() -> None:
    accounts = Accounts(1)
    accounts.load("m", "m", None, {0: DeviceMemory(tensors_bytes=7)}, HostMemory(tensors_bytes=3))
    accounts.set_memory(0, "tensors_bytes", 100)
    accounts.set_memory(0, "tensors_bytes", 50)
    accounts.set_host_memory("tensors_bytes", LARGEST_BYTES - 3)
    report = report_of(accounts, 1.0, 1)
    assert (report.cores[0].memory.tensors_bytes, report.host_memory.tensors_bytes) == (57, LARGEST_BYTES)


def test_what_was_counted_beside_executions_is_told_once_it_is_known() -> None:
    accounts = Accounts(1)
    assert not report_of(accounts, 1.0, 1).HasField("training")
    accounts.set_training(TrainingCounters(steps_total=3))
    assert report_of(accounts, 2.0, 1).training.steps_total == 3


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=12))
def test_busy_time_is_monotonic_and_within_the_elapsed_time(spans: list[tuple[float, float]]) -> None:
    """Whatever order the notes of several threads come in, and whenever reports are made between them."""
    accounts = Accounts(1)
    now, before = 0.0, 0.0
    for one, other in spans:
        started = begin(accounts, min(one, other))
        now = max(now, one, other)
        end(accounts, started, max(one, other))
        busy = report_of(accounts, now, 1).cores[0].busy_seconds_total
        assert before <= busy <= now
        before = busy
