"""Served models on neuron-top's pages and in its document: a job that serves shows requests, not training steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from neurond.snapshots.rates import served_rates

from neurontools.fleet.document import document, document_json
from neurontools.fleet.models import fleet_models
from neurontools.fleet.states import worst_first
from neurontools.model import ModelPlacement, ServedModel, TrainingCounters
from neurontools.model.execution import LatencyCounts
from neurontools.views.drawing.lines import plain_text
from neurontools.views.fleet_hosts import list_rows
from neurontools.views.fleet_page import FleetContext, fleet_page
from neurontools.views.top_document import top_document
from neurontools.web.fleet_page import fleet_page as web_fleet_page
from neurontools.web.nodes import html
from tests.harness.fleet import live, lost
from tests.harness.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
PID = HOST.processes[0].pid
LATENCIES, ON_DEVICE, FIRST, LATER = (LatencyCounts() for _ in range(4))
for milliseconds in range(1, 101):
    LATENCIES.add(milliseconds / 1000)
    ON_DEVICE.add(milliseconds / 4000)
    FIRST.add(0.2)
    LATER.add(0.01)
BERT = ServedModel(
    name="bert",
    placements=tuple(ModelPlacement(core, 1.5, 2**20, 2**19, "w") for core in (0, 1)),
    requests_total=102,
    failed_requests_total=2,
    calls_total=30,
    samples_total=120,
    has_application_requests=True,
    queue_wait_seconds_total=0.51,
    queue_depth=3,
    last_request_at_seconds=HOST.taken_at_seconds - 0.25,
    total_latency_histogram=LATENCIES.histogram(),
    device_latency_histogram=ON_DEVICE.histogram(),
    tokens_total=1000,
    first_token_histogram=FIRST.histogram(),
    output_token_histogram=LATER.histogram(),
)
RATED = replace(BERT, rates=served_rates(ServedModel("bert"), BERT, 10.0))
INNER = ServedModel("traced", calls_total=30, requests_total=30)  # runs inside the requests of the application
SERVING = replace(
    HOST,
    processes=(
        replace(HOST.processes[0], served_models=(INNER, RATED), training=TrainingCounters()),
        *HOST.processes[1:],
    ),
)


def test_the_fleet_has_queue_wait_and_memory_of_each_model_over_its_hosts() -> None:
    assert RATED.rates is not None
    rates = replace(RATED.rates, requests_per_second=30.6, queue_wait_seconds=0.001)
    busier = replace(RATED, queue_depth=4, placements=RATED.placements[:1], rates=rates)
    process = replace(HOST.processes[0], served_models=tuple(replace(busier, name=name) for name in ("bert", *"abc")))
    states = [live("a", SERVING), live("b", replace(HOST, processes=(process,)))]
    states += [lost("gone", "no route", states[0])]
    models = fleet_models(states)
    bert = models[0]
    assert (bert.name, bert.host_count, bert.neuroncore_count, bert.queue_depth) == ("bert", 2, 3, 7)
    assert bert.device_memory_bytes == 3 * 2**20
    assert (bert.requests_per_second, bert.request_p99_seconds) == pytest.approx((40.8, 0.0995), rel=1e-2)
    assert bert.queue_wait_seconds == pytest.approx(0.002), "a mean over requests, not over hosts"
    assert {(model.name, model.host_count) for model in models[1:]} == {("a", 1), ("b", 1), ("traced", 1)}
    fleet = json.loads(document_json(document(states, 0.0, 0.0, jobs=(), models=models)))
    assert fleet["models"][0]["queue_depth"] == 7
    assert {model["name"]: model["neuroncore_count"] for model in fleet["models"]}["traced"] is None, "not loaded"
    assert [host["model_count"] for host in fleet["hosts"]] == [2, 4, 2]
    assert fleet["hosts"][0]["models"][0]["queue_wait_seconds"] == pytest.approx(0.005)
    context = FleetContext(list_rows(states, worst_first), tuple(states), (), models, 0.0, 0.0, 1.0)
    lines = [plain_text(line) for line in fleet_page(context, 100, 40).lines]
    heading = next(at for at, line in enumerate(lines) if "Models: 4, the 3 largest of each host" in line)
    assert lines[heading + 1].split() == "MODEL HOSTS CORES REQ/S REQ P99 WAITING MEAN WAIT HBM".split()
    assert lines[heading + 2].split() == ["bert", "2", "3", "40.8", "99.5ms", "7", "2.0ms", "3.0", "MB"]
    page = web_fleet_page(context, lambda _row: "", lambda _name: "")
    assert "40.8" in html(page)


def test_the_document_has_the_requests_of_the_application_without_the_calls_inside_them() -> None:
    job = next(job for job in top_document(SERVING).jobs if PID in job.pids)
    assert (job.state, job.state_seconds, job.requests_per_second, job.steps_per_second) == (
        "serving",
        0.25,
        10.2,
        None,
    )
