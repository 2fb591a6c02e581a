"""What a process did, as its reports have it, and what can't be in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import model
from neurontools.model import DeviceMemory, HostMemory, OperatorTime, ScriptAdvice, ServedModel, TrainingCounters
from neurontools.model.execution import bucket_index
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.rpc.report_limits import MOST_MODELS, MOST_SUBGRAPHS
from neurontools.runtime.reporting.process_counters import (
    LARGEST_BYTES,
    DeviceMemoryCategory,
    ErrorKind,
    HostMemoryCategory,
    Outcome,
    ProcessCounters,
    StartedExecution,
)

UNIX = 1_000_000.0
TOO_MUCH = LARGEST_BYTES + 1
LARGEST_COUNT = 2**63 - 1  # of an int64 of a message


def report_of(counters: ProcessCounters, now: float, cores: int = 1) -> neuron_pb2.Report:
    return counters.build_report(cores, now, UNIX)


def begin(counters: ProcessCounters, at: float, core: int = 0, model: object = None) -> StartedExecution:
    started = (model, core, at)
    counters.begin_execution(started)
    return started


def end(
    counters: ProcessCounters, started: StartedExecution, at: float, outcome: Outcome = Outcome.COMPLETED, flop: int = 0
) -> None:
    counters.end_execution(started, at, flop, outcome, 0.0)


def load(counters: ProcessCounters, on_cores: dict[int, DeviceMemory], host: HostMemory | None = None) -> None:
    counters.add_model("m", "m", None, on_cores, host or HostMemory())


def test_kinds_have_the_names_of_the_model() -> None:
    for names, of_model in (
        ([f"{outcome}_total" for outcome in Outcome], model.ExecutionCounters),
        ([f"{kind}_total" for kind in ErrorKind], model.ErrorCounters),
        (list(get_args(DeviceMemoryCategory)), model.DeviceMemory),
        (list(get_args(HostMemoryCategory)), model.HostMemory),
    ):
        assert names == [field.name for field in fields(of_model)]


def test_execution_is_counted_on_its_core() -> None:
    counters = ProcessCounters(2)
    started = begin(counters, 10.0, core=1)
    counters.end_execution(started, 10.5, 7_000, Outcome.COMPLETED, 0.25)
    report = report_of(counters, 11.0, 2)
    idle, core = report.cores
    assert (core.busy_seconds_total, core.flop_total, core.executions_total) == (0.5, 7_000, 1)
    assert core.last_execution_at_unix_seconds == UNIX + 10.5
    assert not core.HasField("execution_started_at_unix_seconds")
    assert (idle.busy_seconds_total, idle.flop_total, idle.executions_total) == (0.0, 0, 0)
    assert not idle.HasField("last_execution_at_unix_seconds")
    assert (report.measured_at_seconds, report.measured_at_unix_seconds) == (11.0, UNIX + 11.0)
    assert report.counted_since_seconds == 0.0
    assert {size for _, size in report.host_memory.ListFields()} == {0}
    assert report_of(ProcessCounters(1, 2.5), 9.0).counted_since_seconds == 2.5
    assert report.executions.completed_total == 1
    for histogram, seconds in ((report.device_latency_histogram, 0.5), (report.total_latency_histogram, 0.75)):
        assert list(histogram.bucket_indices) == [bucket_index(seconds)]
        assert histogram.sum_seconds == seconds


def test_executions_in_flight_are_busy_until_now_and_overlaps_count_once() -> None:
    counters = ProcessCounters(1)
    first, second = begin(counters, 1.0), begin(counters, 2.0)
    core = report_of(counters, 2.5).cores[0]
    assert (core.busy_seconds_total, core.executions_total) == (1.5, 0)
    assert core.execution_started_at_unix_seconds == UNIX + 1.0
    end(counters, first, 3.0)
    assert report_of(counters, 3.5).cores[0].execution_started_at_unix_seconds == UNIX + 2.0
    end(counters, second, 4.0)
    end(counters, begin(counters, 6.0), 7.0)
    core = report_of(counters, 20.0).cores[0]
    assert core.busy_seconds_total == 4.0
    assert not core.HasField("execution_started_at_unix_seconds")


def test_late_notes_count_no_time_twice_and_take_none_back() -> None:
    counters = ProcessCounters(1)
    first = begin(counters, 1.0)
    assert report_of(counters, 5.0).cores[0].busy_seconds_total == 4.0
    end(counters, first, 4.5)  # before that report was made, and noted after it
    end(counters, begin(counters, 4.0), 6.0)
    assert report_of(counters, 9.0).cores[0].busy_seconds_total == 5.0


# Fractions of a second that add up exactly: a sum of others may be an ulp above the elapsed time.
MOMENTS = st.integers(0, 100 * 2**20).map(lambda ticks: ticks / 2**20)


@given(st.lists(st.tuples(MOMENTS, MOMENTS), max_size=12))
def test_busy_time_is_monotonic_and_within_the_elapsed_time(spans: list[tuple[float, float]]) -> None:
    """In whatever order the notes of several threads come, and whenever reports are made between them."""
    counters = ProcessCounters(1)
    now, before = 0.0, 0.0
    for one, other in spans:
        started = begin(counters, min(one, other))
        now = max(now, one, other)
        end(counters, started, max(one, other))
        busy = report_of(counters, now).cores[0].busy_seconds_total
        assert before <= busy <= now
        before = busy


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12))
def test_busy_time_is_that_in_which_anything_was_in_flight(spans: list[tuple[int, int]]) -> None:
    counters = ProcessCounters(1)
    changes = [(min(span), 0, number) for number, span in enumerate(spans)]
    changes += [(max(span), 1, number) for number, span in enumerate(spans)]
    started: dict[int, StartedExecution] = {}
    for at, ends, number in sorted(changes):
        if ends:
            end(counters, started[number], at)
        else:
            started[number] = begin(counters, at)
    in_flight = {second for span in spans for second in range(min(span), max(span))}
    assert report_of(counters, 100.0).cores[0].busy_seconds_total == len(in_flight)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_outcomes_with_a_result_have_a_latency(outcome: Outcome) -> None:
    counters = ProcessCounters(1)
    end(counters, begin(counters, 1.0), 2.0, outcome)
    report = report_of(counters, 3.0)
    assert {field.name: value for field, value in report.executions.ListFields()} == {f"{outcome}_total": 1}
    with_result = outcome.value.startswith("completed")
    assert sum(report.device_latency_histogram.bucket_counts) == with_result
    assert sum(report.total_latency_histogram.bucket_counts) == with_result


def test_latencies_are_in_the_order_of_their_buckets() -> None:
    counters = ProcessCounters(1)
    for seconds in (0.5, 0.001, 0.5, -1.0):  # an execution that ends before it began took no time
        end(counters, begin(counters, 1.0), 1.0 + seconds)
    histogram = report_of(counters, 2.0).device_latency_histogram
    assert list(histogram.bucket_indices) == [0, bucket_index(0.001), bucket_index(0.5)]
    assert list(histogram.bucket_counts) == [1, 1, 2]
    assert report_of(counters, 2.0).total_latency_histogram == histogram, "nothing waited in a queue"
    assert histogram.sum_seconds == pytest.approx(1.001)


def test_memory_of_models_counts_on_their_cores_and_goes_with_them() -> None:
    counters = ProcessCounters(2)
    handle = object()
    memory = {0: DeviceMemory(constants_bytes=100), 1: DeviceMemory(constants_bytes=200, model_code_bytes=None)}
    counters.add_model(handle, "m", None, memory, HostMemory(dma_buffers_bytes=5))
    counters.add_memory(0, "tensors_bytes", 30)
    counters.add_memory(0, "constants_bytes", 1)
    counters.set_host_memory("dma_buffers_bytes", 10)
    report = report_of(counters, 1.0, 2)
    assert (report.cores[0].memory.constants_bytes, report.cores[0].memory.tensors_bytes) == (101, 30)
    assert report.cores[1].memory.constants_bytes == 200
    assert report.host_memory.dma_buffers_bytes == 15
    parts = report.models[0].subgraphs
    assert [(part.index, part.neuroncore_index, part.device_memory.constants_bytes) for part in parts] == [
        (0, 0, 100),
        (1, 1, 200),
    ]
    assert not parts[1].device_memory.HasField("model_code_bytes")
    assert [part.host_memory.dma_buffers_bytes for part in parts] == [5, 0]
    assert [part.HasField("host_memory") for part in parts] == [True, False]
    counters.remove_model(handle)
    report = report_of(counters, 2.0, 2)
    assert [core.memory.constants_bytes for core in report.cores] == [1, 0]
    assert report.host_memory.dma_buffers_bytes == 10
    assert not report.models


def test_memory_is_never_below_nothing_and_a_level_is_set_apart_from_that_of_models() -> None:
    counters = ProcessCounters(1)
    for change, left in ((-10, 0), (10, 0), (5, 5)):
        counters.add_memory(0, "tensors_bytes", change)
        assert report_of(counters, 1.0).cores[0].memory.tensors_bytes == left
    for level in (100, 50):
        counters.set_memory(0, "tensors_bytes", level)
    load(counters, {0: DeviceMemory(tensors_bytes=7)}, HostMemory(tensors_bytes=3))
    counters.set_host_memory("tensors_bytes", LARGEST_BYTES - 3)
    report = report_of(counters, 1.0)
    assert (report.cores[0].memory.tensors_bytes, report.host_memory.tensors_bytes) == (57, LARGEST_BYTES)


def test_models_have_an_identity_of_their_own_or_one_made_from_the_name() -> None:
    counters = ProcessCounters(1)
    none = ["0" * 31, "0" * 33, "g" + "0" * 31, "0" * 31 + "x", "", "0" * 32 + "-0", "../../etc/passwd", None]
    for number, uuid in enumerate(none):
        counters.add_model(number, "same", uuid, {}, HostMemory())
    counters.add_model(99, "\udc80" + "x" * 2000, "0123ABCD-0123-abcd-0123-abcd0123abcd", {}, HostMemory())
    *same, last = report_of(counters, 1.0).models
    assert [loaded.model_id for loaded in same] == [10001 + number for number in range(len(none))]
    (made,) = {loaded.uuid for loaded in same}
    assert len(made) == 32
    assert set(made) <= set("0123456789abcdef")
    assert made != "0" * 32
    assert last.uuid == "0123abcd0123abcd0123abcd0123abcd"
    assert last.name == "?" + "x" * 1023


def test_a_model_counts_its_executions_also_once_it_is_unloaded() -> None:
    counters = ProcessCounters(1)
    load(counters, {})
    loaded = report_of(counters, 1.0).models[0]
    assert (loaded.executions_total, loaded.HasField("last_execution_at_unix_seconds")) == (0, False)
    for at in (1.0, 3.0):
        end(counters, begin(counters, at, model="m"), at + 1.0)
    loaded = report_of(counters, 5.0).models[0]
    assert (loaded.executions_total, loaded.last_execution_at_unix_seconds) == (2, UNIX + 4.0)
    assert loaded.busy_seconds_total == 2.0
    started = begin(counters, 6.0, model="m")
    counters.remove_model("m")
    end(counters, started, 7.0)
    assert report_of(counters, 8.0).executions.completed_total == 3


def test_model_runs_when_it_executed_since_the_last_report_that_arrived() -> None:
    counters = ProcessCounters(1)
    load(counters, {})

    def running(*, arrived: bool) -> bool:
        answer = report_of(counters, 9.0).models[0].running
        if arrived:
            counters.mark_delivered()
        return answer

    counters.mark_delivered()  # a report that was under way when the model was loaded
    assert not running(arrived=True)
    started = begin(counters, 1.0, model="m")
    end(counters, begin(counters, 1.0, model="m"), 1.5)
    assert running(arrived=True)
    assert running(arrived=True)  # still in flight
    end(counters, started, 2.0)
    assert running(arrived=False)
    assert running(arrived=True)  # the daemon has not heard of it yet
    assert not running(arrived=True)
    report_of(counters, 9.0)
    end(counters, begin(counters, 3.0, model="m"), 4.0)  # while a report is under way
    counters.mark_delivered()
    assert running(arrived=True)


def test_errors_are_counted_by_kind_and_what_the_process_tells_of_itself_is_in_the_report() -> None:
    counters = ProcessCounters(1)
    assert not report_of(counters, 1.0).HasField("training")
    for kind in (*ErrorKind, ErrorKind.HARDWARE):
        counters.add_error(kind)
    counters.set_training(TrainingCounters(steps_total=3), (OperatorTime("x" * 129, 0.5, 2),))
    advice = ScriptAdvice("host-read", "y" * 401, None, "", "")
    counters.set_advice([advice] * 5)
    counters.set_served_models([ServedModel(str(number)) for number in range(17)])
    report = report_of(counters, 1.0)
    assert {field.name: value for field, value in report.errors.ListFields()} == {
        f"{kind}_total": 2 if kind is ErrorKind.HARDWARE else 1 for kind in ErrorKind
    }
    assert report.training.steps_total == 3
    assert [from_message(OperatorTime, each) for each in report.operators] == [OperatorTime("x" * 128, 0.5, 2)]
    assert [from_message(ScriptAdvice, each) for each in report.advice] == [replace(advice, measured="y" * 400)] * 4
    assert [served.name for served in report.served_models] == [str(number) for number in range(16)]


WRONG: list[tuple[str, Callable[[ProcessCounters], object]]] = [
    (".", lambda counters: end(counters, (None, 0, 1.0), 2.0)),  # ended already
    ("core 2: this process has cores 0-1$", lambda counters: begin(counters, 1.0, core=2)),
    ("core -1", lambda counters: begin(counters, 1.0, core=-1)),
    ("core 2", lambda counters: counters.add_memory(2, "tensors_bytes", 1)),
    ("'bytes' is not a category", lambda counters: counters.add_memory(0, "bytes", 1)),
    (f"^bytes is {TOO_MUCH}, which", lambda counters: counters.add_memory(0, "tensors_bytes", TOO_MUCH)),
    (f"^bytes is {-TOO_MUCH}, which", lambda counters: counters.add_memory(0, "tensors_bytes", -TOO_MUCH)),
    ("is not a category", lambda counters: counters.set_memory(0, "application_memory_bytes", 1)),
    ("^bytes is -1", lambda counters: counters.set_memory(0, "tensors_bytes", -1)),
    ("is not a category", lambda counters: counters.set_host_memory("collectives_bytes", 1)),
    ("it has application_memory_bytes, constants_bytes,", lambda counters: counters.set_host_memory("bytes", 1)),
    (f"^bytes is {TOO_MUCH}, which", lambda counters: counters.set_host_memory("tensors_bytes", TOO_MUCH)),
    (".", lambda counters: counters.add_error("unheard of")),  # type: ignore[arg-type]
    ("core 5", lambda counters: load(counters, {5: DeviceMemory()})),
    ("^constants_bytes is -1", lambda counters: load(counters, {0: DeviceMemory(constants_bytes=-1)})),
    ("^tensors_bytes is -1, which", lambda counters: load(counters, {}, HostMemory(tensors_bytes=-1))),
    (f"^tensors_bytes is {TOO_MUCH}", lambda counters: load(counters, {}, HostMemory(tensors_bytes=TOO_MUCH))),
    (".", lambda counters: counters.remove_model("never loaded")),
]


def test_wrong_arguments_are_named_and_change_nothing() -> None:
    counters = ProcessCounters(2)
    end(counters, begin(counters, 1.0), 1.5)
    before = report_of(counters, 2.0, 2).SerializeToString(deterministic=True)
    for text, call in WRONG:
        with pytest.raises((ValueError, IndexError), match=text):
            call(counters)
    assert report_of(counters, 2.0, 2).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("flop", "outcome", "queued", "text"),
    [
        (-1, Outcome.COMPLETED, 0.0, "^flop is -1, which"),
        (LARGEST_COUNT + 1, Outcome.COMPLETED, 0.0, "^flop is"),
        (1, "fine", 0.0, "fine"),
        (1, Outcome.COMPLETED, float("nan"), "^queued_seconds is nan"),
        (1, Outcome.COMPLETED, -1.0, "^queued_seconds is -1"),
        (1, Outcome.COMPLETED, 1e9 + 1, "^queued_seconds is 1000000001.0"),
    ],
)
def test_execution_with_wrong_results_ends_uncounted(flop: int, outcome: Outcome, queued: float, text: str) -> None:
    counters = ProcessCounters(1)
    started = begin(counters, 1.0)
    with pytest.raises(ValueError, match=text):
        counters.end_execution(started, 2.0, flop, outcome, queued)
    report = report_of(counters, 3.0)
    assert report.cores[0].busy_seconds_total == 1.0
    assert not report.cores[0].HasField("execution_started_at_unix_seconds")
    assert (report.cores[0].executions_total, report.cores[0].flop_total) == (0, 0)
    assert not report.executions.ListFields()
    assert not report.device_latency_histogram.bucket_counts


def test_the_largest_amounts_are_taken_and_sums_stay_in_the_range_of_a_report() -> None:
    counters = ProcessCounters(1)
    for _ in range(3):
        counters.end_execution(begin(counters, 1.0), 2.0, LARGEST_COUNT, Outcome.COMPLETED, 1e9)
    for bytes_count in (-LARGEST_BYTES, *[LARGEST_BYTES] * 300):
        counters.add_memory(0, "tensors_bytes", bytes_count)
    load(counters, {0: DeviceMemory(constants_bytes=LARGEST_BYTES)})
    report = report_of(counters, 3.0)
    assert report.total_latency_histogram.sum_seconds == 3 * (1e9 + 1)
    assert report.cores[0].flop_total == LARGEST_COUNT
    assert report.cores[0].memory.tensors_bytes == LARGEST_BYTES
    assert report.cores[0].memory.constants_bytes == LARGEST_BYTES


def test_cores_beyond_those_granted_are_not_reported() -> None:
    counters = ProcessCounters()  # the daemon has not said how many cores there are
    begin(counters, 1.0, core=1023)
    with pytest.raises(IndexError, match="core 1024: this process has cores 0-1023"):
        begin(counters, 1.0, core=1024)
    memory = {index: DeviceMemory(tensors_bytes=index) for index in (5, 2, 0, 1)}
    load(counters, memory)
    end(counters, begin(counters, 1.0, core=7), 2.0)
    report = report_of(counters, 3.0, 2)
    assert [core.local_index for core in report.cores] == [0, 1]
    parts = report.models[0].subgraphs
    assert [(part.index, part.neuroncore_index, part.device_memory.tensors_bytes) for part in parts] == [
        (0, 0, 0),
        (1, 1, 1),
    ]


@pytest.mark.parametrize(
    ("cores", "most", "text"),
    [
        (0, MOST_MODELS, "more than 512 models are loaded"),
        (128, MOST_SUBGRAPHS // 128, "on cores more than 1024 times"),
    ],
)
def test_models_beyond_what_a_report_holds_are_refused(cores: int, most: int, text: str) -> None:
    counters = ProcessCounters(128)
    memory = {core: DeviceMemory(tensors_bytes=1) for core in range(cores)}
    for number in range(most):
        counters.add_model(number, "m", None, memory, HostMemory())
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{text}; the rest is not reported"):
            counters.add_model("one more", "m", None, {0: DeviceMemory()}, HostMemory())
        assert len(report_of(counters, 1.0, 128).models) == most
        counters.remove_model(0)
        counters.add_model(0, "m", None, memory, HostMemory())
