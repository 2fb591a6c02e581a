from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import DeviceMemory, HostMemory, TrainingCounters
from neurontools.model.latency import bucket_index
from neurontools.rpc import neuron_pb2
from neurontools.rpc.report_limits import MOST_MODELS, MOST_SUBGRAPHS
from neurontools.runtime.reporting.accounts import (
    LARGEST_BYTES,
    LARGEST_COUNT,
    Accounts,
    Started,
    sendable,
)
from neurontools.runtime.reporting.kinds import ErrorKind, Outcome

UNIX = 1_000_000.0


def report_of(accounts: Accounts, now: float, cores: int = 2) -> neuron_pb2.Report:
    return accounts.report(cores, now, UNIX)


def begin(accounts: Accounts, at: float, core: int = 0, model: object = None) -> Started:
    started = (model, core, at)
    accounts.begin(started)
    return started


def end(accounts: Accounts, started: Started, at: float, outcome: Outcome = Outcome.COMPLETED, flop: int = 0) -> None:
    accounts.end(started, at, flop, outcome, 0.0)


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


def test_wrong_arguments_change_nothing() -> None:
    accounts = Accounts(2)
    started = begin(accounts, 1.0)
    end(accounts, started, 1.5)
    before = report_of(accounts, 2.0).SerializeToString(deterministic=True)
    wrong_core = DeviceMemory(constants_bytes=1)
    for call in (
        lambda: end(accounts, started, 2.0),
        lambda: begin(accounts, 1.0, core=2),
        lambda: begin(accounts, 1.0, core=-1),
        lambda: accounts.add_memory(2, "tensors_bytes", 1),
        lambda: accounts.add_memory(0, "bytes", 1),
        lambda: accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES + 1),
        lambda: accounts.set_memory(0, "application_memory_bytes", 1),
        lambda: accounts.set_memory(0, "tensors_bytes", -1),
        lambda: accounts.set_host_memory("collectives_bytes", 1),
        lambda: accounts.add_error("unheard of"),  # type: ignore[arg-type]
        lambda: accounts.load("m", "m", None, {5: wrong_core}, HostMemory()),
        lambda: accounts.load("m", "m", None, {0: DeviceMemory(constants_bytes=-1)}, HostMemory()),
        lambda: accounts.unload("never loaded"),
    ):
        with pytest.raises((ValueError, IndexError)):
            call()
    assert report_of(accounts, 2.0).SerializeToString(deterministic=True) == before


def test_execution_with_wrong_results_ends_uncounted() -> None:
    accounts = Accounts(1)
    for flop, outcome, queued in (
        (-1, Outcome.COMPLETED, 0.0),
        (LARGEST_COUNT + 1, Outcome.COMPLETED, 0.0),
        (1, "fine", 0.0),
        (1, Outcome.COMPLETED, float("nan")),
        (1, Outcome.COMPLETED, -1.0),
    ):
        started = begin(accounts, 1.0)
        with pytest.raises(ValueError):
            accounts.end(started, 2.0, flop, outcome, queued)  # type: ignore[arg-type]
    report = report_of(accounts, 3.0, 1)
    assert report.cores[0].busy_seconds_total == 1.0
    assert not report.cores[0].HasField("execution_started_at_unix_seconds")
    assert (report.cores[0].executions_total, report.cores[0].flop_total) == (0, 0)
    assert not report.executions.ListFields()
    assert not report.device_latency_histogram.bucket_counts


def test_huge_counts_stay_in_the_range_of_a_report() -> None:
    accounts = Accounts(1)
    for _ in range(3):
        end(accounts, begin(accounts, 1.0), 2.0, flop=LARGEST_COUNT)
    for _ in range(300):
        accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES)
    core = report_of(accounts, 3.0, 1).cores[0]
    assert core.flop_total == LARGEST_COUNT
    assert core.memory.tensors_bytes == LARGEST_BYTES


def test_memory_given_back_before_it_was_taken_is_none_in_use() -> None:
    accounts = Accounts(1)
    accounts.add_memory(0, "tensors_bytes", -10)
    assert report_of(accounts, 1.0, 1).cores[0].memory.tensors_bytes == 0
    accounts.add_memory(0, "tensors_bytes", 10)
    accounts.add_memory(0, "tensors_bytes", 5)
    assert report_of(accounts, 1.0, 1).cores[0].memory.tensors_bytes == 5


def test_cores_beyond_those_granted_are_not_reported() -> None:
    accounts = Accounts()
    accounts.load("m", "m", None, {0: DeviceMemory(), 5: DeviceMemory()}, HostMemory())
    end(accounts, begin(accounts, 1.0, core=7), 2.0)
    report = report_of(accounts, 3.0, 2)
    assert [core.local_index for core in report.cores] == [0, 1]
    assert [subgraph.neuroncore_index for subgraph in report.models[0].subgraphs] == [0]


def test_a_model_is_on_the_cores_that_are_granted_and_no_further() -> None:
    accounts = Accounts()
    memory = {index: DeviceMemory(tensors_bytes=index) for index in (2, 0, 1)}
    accounts.load("m", "m", None, memory, HostMemory(tensors_bytes=9))
    parts = report_of(accounts, 1.0).models[0].subgraphs
    assert [(part.index, part.neuroncore_index, part.device_memory.tensors_bytes) for part in parts] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert [part.HasField("host_memory") for part in parts] == [True, False]


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


def test_until_the_daemon_has_said_how_many_cores_there_are_a_thousand_may_be_named() -> None:
    accounts = Accounts()
    begin(accounts, 1.0, core=1023)
    with pytest.raises(IndexError, match="core 1024: this process has cores 0-1023"):
        begin(accounts, 1.0, core=1024)
    accounts.core_count = 2
    with pytest.raises(IndexError, match=r"^core 2: this process has cores 0-1$"):
        begin(accounts, 1.0, core=2)


def test_models_beyond_what_a_report_holds_are_refused() -> None:
    accounts = Accounts(1)
    for number in range(MOST_MODELS):
        accounts.load(number, "m", None, {}, HostMemory())
    with pytest.raises(ValueError, match="more than 512 models are loaded; the rest is not reported"):
        accounts.load("one more", "m", None, {}, HostMemory())
    accounts.unload(0)
    accounts.load("one more", "m", None, {}, HostMemory())
    assert len(report_of(accounts, 1.0, 1).models) == MOST_MODELS == 512


def test_subgraphs_beyond_what_a_report_holds_are_refused() -> None:
    accounts = Accounts(128)
    everywhere = {core: DeviceMemory(tensors_bytes=1) for core in range(128)}
    for number in range(MOST_SUBGRAPHS // 128):
        accounts.load(number, "m", None, everywhere, HostMemory())
    with pytest.raises(ValueError, match="on cores more than 1024 times; the rest is not reported"):
        accounts.load("one more", "m", None, {0: DeviceMemory()}, HostMemory())
    assert sum(len(loaded.subgraphs) for loaded in report_of(accounts, 1.0, 128).models) == MOST_SUBGRAPHS


def test_the_largest_amounts_are_taken_and_what_is_above_them_is_named() -> None:
    accounts = Accounts(1)
    accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES)
    accounts.add_memory(0, "tensors_bytes", -LARGEST_BYTES)
    accounts.set_memory(0, "tensors_bytes", 0)
    accounts.load("m", "m", None, {0: DeviceMemory(tensors_bytes=LARGEST_BYTES)}, HostMemory())
    accounts.end(begin(accounts, 1.0), 2.0, LARGEST_COUNT, Outcome.COMPLETED, 1e9)
    assert report_of(accounts, 3.0, 1).total_latency_histogram.sum_seconds == 1e9 + 1
    too_much = LARGEST_BYTES + 1
    refused: list[tuple[str, Callable[[], None]]] = [
        (f"^bytes is {-too_much}, which", lambda: accounts.add_memory(0, "tensors_bytes", -too_much)),
        (f"^bytes is {too_much}, which", lambda: accounts.set_host_memory("tensors_bytes", too_much)),
        ("^tensors_bytes is -1, which", lambda: accounts.load(2, "m", None, {}, HostMemory(tensors_bytes=-1))),
        (
            f"^constants_bytes is {too_much}, which",
            lambda: accounts.load(2, "m", None, {}, HostMemory(constants_bytes=too_much)),
        ),
        ("^flop is -1, which", lambda: accounts.end(begin(accounts, 3.0), 4.0, -1, Outcome.COMPLETED, 0.0)),
        (
            "^queued_seconds is 1000000001.0",
            lambda: accounts.end(begin(accounts, 3.0), 4.0, 0, Outcome.COMPLETED, 1e9 + 1),
        ),
        (
            "^'bytes' is not a category of this memory; it has application_memory_bytes, constants_bytes,",
            lambda: accounts.set_host_memory("bytes", 1),
        ),
    ]
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            call()
    assert len(report_of(accounts, 5.0, 1).models) == 1


@pytest.mark.parametrize(
    ("text", "sent"), [("\udc80x", "?x"), ("é" * 3, "éé"), ("ab", "ab")], ids=["surrogate", "cut", "whole"]
)
def test_text_is_made_sendable(text: str, sent: str) -> None:
    assert sendable(text, 2) == sent


@pytest.mark.parametrize("uuid", ["0" * 31, "0" * 33, "g" + "0" * 31, "0" * 31 + "x", "", "0" * 32 + "-0"])
def test_an_identity_that_is_none_is_made_from_the_name(uuid: str) -> None:
    accounts = Accounts(1)
    accounts.load(1, "m", uuid, {}, HostMemory())
    accounts.load(2, "m", None, {}, HostMemory())
    one, other = report_of(accounts, 1.0, 1).models
    assert one.uuid == other.uuid != uuid.replace("-", "")


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
