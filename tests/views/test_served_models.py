"""Served models on neuron-top's pages and in its document: a job that serves shows requests, not training steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from neurond.snapshots.rates import served_rates

from neurontools.fleet.document import document, document_json
from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.models import fleet_models
from neurontools.fleet.states import worst_first
from neurontools.model import Job, ModelPlacement, ServedModel, TrainingCounters
from neurontools.model.execution import LatencyCounts
from neurontools.views.drawing.lines import plain_text
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.fleet_hosts import HostRow, list_rows
from neurontools.views.fleet_page import FleetContext, fleet_page
from neurontools.views.overview_page import overview_page
from neurontools.views.processes_page import process_page
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


def test_the_row_of_a_job_that_serves_has_requests_a_second_and_their_p99() -> None:
    lines = [plain_text(line) for line in overview_page(RenderContext.from_snapshot(SERVING), 160, 40).lines]
    titles = next(line for line in lines if "REQ/S" in line)
    row = next(line for line in lines if "10.2" in line)
    assert row[: titles.index("REQ/S") + 5].split()[-1] == "10.2"
    assert row[: titles.index("REQ P99") + 7].split()[-1] == "99.5ms", "the bucket of 99 ms"
    assert "STEP" not in titles


def test_the_list_of_processes_has_a_column_for_requests_only_while_there_are_some() -> None:
    lines = [plain_text(line) for line in process_page(RenderContext.from_snapshot(SERVING), 160, 20).lines]
    titles, row = lines[1], next(line for line in lines if "2 ranks" in line)
    assert row[: titles.index("REQ/S") + 5].split()[-1] == "10.2"
    assert row[: titles.index("REQ P99") + 7].split()[-1] == "99.5ms"
    without = process_page(RenderContext.from_snapshot(HOST), 160, 20)
    assert "REQ" not in plain_text(without.lines[1])


def test_the_fleet_has_the_requests_of_hosts_and_jobs() -> None:
    (job_process, *others) = SERVING.processes
    state = live("here", replace(SERVING, processes=(replace(job_process, job=Job("serve")), *others)))
    jobs = fleet_jobs([state])
    fleet = document([state], 0.0, 0.0, jobs=jobs, models=())
    for found in (fleet.hosts[0], fleet.hosts[0].jobs[0], fleet.jobs[0]):
        assert (found.requests_per_second, found.request_p99_seconds) == pytest.approx((10.2, 0.0995), rel=1e-2)
    context = FleetContext([HostRow(state, "here")], (state,), jobs, (), 0.0, 0.0, 1.0)
    lines = [plain_text(line) for line in fleet_page(context, 160, 30).lines]
    for titles in (line for line in lines if "REQ/S" in line):
        row = next(line for line in lines[lines.index(titles) :] if "10.2" in line)
        assert row[: titles.index("REQ/S") + 5].split()[-1] == "10.2"
        assert row[: titles.index("REQ P99") + 7].split()[-1] == "99.5ms"
    assert sum("REQ/S" in line for line in lines) == 2


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


def test_the_details_have_latencies_histogram_queue_placement_and_tokens_of_each_model() -> None:
    page = process_page(RenderContext.from_snapshot(SERVING, details_pid=PID), 200, 50)
    shown = [((text := plain_text(line))[:13].strip(), text[13:].strip()) for line in page.lines[:25]]
    assert "steps" not in str(shown)
    text = "\n".join(plain_text(line) for line in page.lines)
    assert "bert: 10.2 requests/s, batch 4; 102 so far, 2 failed, last 250.0 ms ago" in text
    assert ("queue", "3 waiting, mean wait 5.0 ms") in shown
    assert ("loaded", "on NC 0-1 in 1.5 s, HBM 2.0 MB") in shown
    assert any(name == "tokens" and "1,000 so far; first after 199.6 ms" in value for name, value in shown)
    for name in "p50", "p90", "p99", "p100":
        assert f"{name} " in text
    histogram = next(line for line in text.splitlines() if "histogram" in line)
    assert histogram.index("1.0 ms") < histogram.index("█") < histogram.index("100.5 ms")


def test_the_document_has_all_facts_of_a_model_and_the_load_of_its_job() -> None:
    document = top_document(SERVING)
    served = next(process for process in document.processes if process.pid == PID).served_models[1]
    assert (served.name, served.neuroncores, served.placement_count) == ("bert", (0, 1), 2)
    assert (served.device_memory_bytes, served.load_seconds) == (2**21, 1.5)
    assert (served.batch_size, served.queue_depth, served.requests_total) == (4.0, 3, 102)
    assert served.since_last_request_seconds == 0.25
    assert served.total_latency is not None
    assert served.total_latency.p90_seconds is not None
    job = next(job for job in document.jobs if PID in job.pids)
    assert (job.state, job.state_seconds) == ("serving", 0.25)
    assert job.requests_per_second == 10.2, "requests of the application, without the calls inside them"
    assert job.steps_per_second is None
