"""The requests and calls of served models: how they are counted, and how they arrive in a snapshot."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from neurontools.model import ModelPlacement, ServedModel
from neurontools.rpc.report_limits import MOST_SERVED_MODELS
from neurontools.runtime import Reporter
from neurontools.runtime.reporting.inference_log import OTHER_MODELS, InferenceLog
from tests.harness import python_process
from tests.harness.reporting_process import PATIENT, PID, attach
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import wait_until


def test_calls_of_many_threads_are_counted_exactly_and_arrive_with_their_rates(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    log = InferenceLog()
    reporter = attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="4-5")
    reporter.before_reports(lambda reporter: reporter.set_served_models(log.read()))
    bert = log.model("bert")
    placed = ModelPlacement(1, load_seconds=0.5, device_memory_bytes=4096, weights_bytes=4000, weights_id="w1")
    bert.load([placed, ModelPlacement(0)])

    def serve(thread: int) -> None:
        for call in range(250):
            bert.change_queue_depth(1)
            bert.change_queue_depth(-1)
            log.model("bert").record_call(4, 0.020, 0.010, 0.005, failed=thread == call == 0)

    assert reporter.flush(60)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(serve, range(8)))
    assert reporter.flush(60)

    def served() -> ServedModel | None:
        found = next((p.served_models for p in daemon.snapshot().processes if p.pid == PID), ())
        return found[0] if found and found[0].calls_total == 2000 else None

    found = wait_until(served)
    assert (found.name, found.requests_total, found.failed_requests_total, found.samples_total) == (
        "bert",
        2000,
        1,
        8000,
    )
    assert [each.neuroncore_index for each in found.placements] == [4, 5], "cores of the host"
    assert found.placements[1].weights_id == "w1"
    assert (found.queue_depth, found.has_application_requests, found.tokens_total) == (0, False, None)
    assert found.queue_wait_seconds_total == pytest.approx(10.0)
    assert 0 < (found.last_request_at_seconds or 0) <= time.monotonic()
    assert sum(found.total_latency_histogram.bucket_counts) == 1999, "a failed request has no latency"
    rates = found.rates
    assert rates is not None
    assert rates.total_latency is not None
    assert rates.device_latency is not None
    assert rates.batch_size == 4.0
    assert rates.queue_wait_seconds == pytest.approx(0.005)
    assert rates.total_latency.p90_seconds == pytest.approx(0.020, rel=0.01)
    assert rates.device_latency.p50_seconds == pytest.approx(0.010, rel=0.01)
    assert (rates.requests_per_second or 0) > 0
    bert.unload([placed])
    assert reporter.flush(60)
    unloaded = wait_until(lambda: found if (found := served()) and len(found.placements) == 1 else None)
    assert unloaded.placements[0].neuroncore_index == 4


def test_requests_of_the_application_replace_those_counted_from_calls_and_tokens_have_two_times() -> None:
    log = InferenceLog()
    model = log.model("llm")
    model.record_call(8, 0.1, 0.1)
    assert model.read().requests_total == 1
    model.record_request(0.5, 0.2)
    model.record_call(8, 0.1, 0.1)
    model.record_request(0.7, failed=True)
    counted = model.read()
    assert (counted.requests_total, counted.failed_requests_total, counted.calls_total) == (2, 1, 2)
    assert counted.has_application_requests
    assert counted.total_latency_histogram.sum_seconds == 0.5
    model.record_tokens(11, 0.25, 1.25)
    model.record_tokens(1, 0.25, 0.25)
    model.record_tokens(4, None, 2.0)
    counted = model.read()
    assert counted.tokens_total == 16
    assert sum(counted.first_token_histogram.bucket_counts) == 2
    assert counted.output_token_histogram.bucket_counts == (1,), "one token has no time after the first"
    assert counted.output_token_histogram.sum_seconds == pytest.approx(0.1)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is not a duration"):
            model.record_call(1, wrong, 0.0)
        with pytest.raises(ValueError, match="is not a duration"):
            model.record_request(0.0, wrong)
    assert model.read() == counted, "a refused value changes nothing"


REQUESTS = """
import sys
from neurontools.runtime import InferenceReport
with InferenceReport.start() as report:
    waiting = report.request("bert")
    with report.request("bert") as request:
        request.begin()
    try:
        with report.request("bert"):
            raise OSError
    except OSError:
        pass
    timer = report.tokens("llm")
    for _ in range(5):
        timer.add_tokens(2)
    timer.end()
    report.flush()
    print("torch" in sys.modules, flush=True)
    sys.stdin.readline()
"""


def test_a_server_reports_its_requests_and_tokens_without_the_runtime(daemon: RestartedDaemon) -> None:
    script = python_process.popen(
        [sys.executable, "-c", PATIENT + REQUESTS],
        loaded=python_process.MONITORS,
        **python_process.PIPES,
        env=python_process.user_environment(NEURONTOOLS_SOCKET=daemon.socket, NEURON_RT_VISIBLE_CORES="3"),
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "False\n"

    def served() -> tuple[ServedModel, ...]:
        process = daemon.find(script.pid)
        return () if process is None else process.served_models

    bert, llm = wait_until(served)
    assert (bert.requests_total, bert.failed_requests_total, bert.queue_depth) == (2, 1, 1)
    assert bert.has_application_requests
    assert llm.tokens_total == 10
    assert sum(llm.first_token_histogram.bucket_counts) == sum(llm.output_token_histogram.bucket_counts) == 1
    _, errors = script.communicate("\n")
    assert (script.returncode, errors) == (0, "")


def test_models_beyond_the_limit_are_counted_together_and_names_are_made_printable() -> None:
    log = InferenceLog()
    for index in range(100):
        log.model(f"model\x1b\n{index}").record_call(1, 0.1, 0.1)
    counted = log.read()
    assert len(counted) == MOST_SERVED_MODELS
    assert counted[0].name == "model??0"
    assert counted[-1].name == OTHER_MODELS
    assert sum(each.calls_total for each in counted) == 100
    assert len(log.model("x" * 1000).name) <= 128
