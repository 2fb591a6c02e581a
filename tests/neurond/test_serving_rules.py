"""Findings on processes that serve models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.snapshots.rates import served_rates
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.model import (
    CoreWork,
    Finding,
    ModelPlacement,
    ServedModel,
    Snapshot,
    TrainingCounters,
)
from neurontools.model.execution import LatencyCounts
from neurontools.model.health import finding_name
from tests.harness.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.2xlarge", "steady").at(400.0)
NOW = HOST.taken_at_seconds
LATENCIES = LatencyCounts()
LATENCIES.add(0.010)
WEIGHTS = 64 * 2**20


def served(*placements: ModelPlacement, name: str = "bert") -> ServedModel:
    model = ServedModel(
        name,
        placements,
        requests_total=100,
        calls_total=50,
        samples_total=200,
        queue_wait_seconds_total=0.5,
        queue_depth=2,
        last_request_at_seconds=NOW - 1.0,
        total_latency_histogram=LATENCIES.histogram(),
    )
    return replace(model, rates=served_rates(ServedModel(name), model, 10.0))


def host(*models: ServedModel, since: float = 400.0, steps: int = 0, busy: float = 0.0) -> Snapshot:
    """A host with one process that holds both cores, of which core 0 has worked."""
    process = replace(
        HOST.processes[0],
        neuroncore_indices=(0, 1),
        core_indices=(0, 1),
        core_work=(CoreWork(5.0), CoreWork(busy)),
        models=(),
        served_models=models,
        counted_since_seconds=NOW - since,
        measured_at_seconds=NOW,
        reporting=True,
        training=TrainingCounters(steps_total=steps),
    )
    return replace(HOST, processes=(process,))


def findings(snapshot: Snapshot, limits: HealthThresholds | None = None) -> dict[str, Finding]:
    health = RuleEvaluator(limits).evaluate(snapshot).health
    assert health is not None
    wanted = "cores_without_model", "duplicated_weights"
    return {str(finding.kind): finding for finding in health.findings if finding.kind in wanted}


class Served:
    """A process that is judged once a second, with requests of one latency at one rate for some time each."""

    def __init__(self) -> None:
        self._judge = RuleEvaluator()
        self._seconds = self._requests = 0
        self._latencies = LatencyCounts()

    def run(self, seconds: int, latency_seconds: float, per_second: int = 20) -> list[Finding]:
        """Returns the findings about request latency, of all these seconds."""
        found = []
        for _ in range(seconds):
            self._seconds += 1
            self._requests += per_second
            for _ in range(per_second):
                self._latencies.add(latency_seconds)
            model = ServedModel("bert", (placed(0), placed(1)), self._requests)
            model = replace(model, total_latency_histogram=self._latencies.histogram())
            still = host(model, since=0.0)
            process = replace(still.processes[0], measured_at_seconds=NOW + self._seconds)
            snapshot = replace(
                still,
                sequence=self._seconds,
                taken_at_seconds=still.taken_at_seconds + self._seconds,
                taken_at_unix_seconds=still.taken_at_unix_seconds + self._seconds,
                processes=(process,),
            )
            health = self._judge.evaluate(snapshot).health
            assert health is not None
            found += [each for each in health.findings if each.kind == "latency_risen"]
            self.findings = health.findings
        return found


def test_slower_requests_are_a_finding_unless_there_are_more_of_them() -> None:
    server = Served()
    assert not server.run(600, 0.010)
    found = server.run(200, 0.030)
    assert {(each.reason.partition(": ")[2], each.part, each.pid) for each in found} == {
        (
            "median latency of requests for bert rose from 10.0 ms to 30.0 ms, with no more requests than before",
            "requests",
            HOST.processes[0].pid,
        )
    }
    assert finding_name(found[0]) == "LATENCY_RISEN"
    assert not Served().run(30, 0.010), "too short to compare"
    busier = Served()
    busier.run(600, 0.010)
    assert not busier.run(200, 0.030, per_second=60), "more requests wait longer"


def test_the_finding_about_idle_cores_names_the_model_that_is_loaded_on_them() -> None:
    server = Served()
    server.run(400, 0.010)
    (idle,) = [each for each in server.findings if each.kind == "idle"]
    assert idle.reason.endswith("and idle, with bert loaded")


def placed(core: int, weights: str | None = "w") -> ModelPlacement:
    return ModelPlacement(core, 0.5, WEIGHTS, WEIGHTS, weights)


def test_cores_without_a_model_are_a_finding_only_for_a_process_that_serves_on_others() -> None:
    found = findings(host(served(placed(0))))["cores_without_model"]
    assert found.reason.endswith("holds 2 NeuronCores and serves on 1; no model is on NC 1")
    assert "DataParallel" in found.action
    assert found.pid == HOST.processes[0].pid
    for quiet in (
        host(served(placed(0), placed(1))),
        host(served(placed(0)), busy=0.1),
        host(served(placed(0)), steps=1),
        host(served(placed(0)), since=60.0),
        host(served()),
        host(),
    ):
        assert not findings(quiet)
    assert not findings(host(served(placed(0))), HealthThresholds(idle_seconds=None))


@pytest.mark.parametrize("names", [("bert", "bert-128"), ("bert",)])
def test_equal_weights_twice_on_a_core_are_a_finding_and_once_on_each_core_are_not(names: tuple[str, ...]) -> None:
    models = [served(placed(0), placed(1), name=name) for name in names]
    if len(names) == 1:
        models = [served(placed(0), placed(0), placed(1))]
    found = findings(host(*models))["duplicated_weights"]
    wasted = "128.0 MB" if len(names) == 2 else "64.0 MB"
    assert f"equal weights of {', '.join(names)} more than once on NC 0" in found.reason
    assert found.reason.endswith(f"{wasted} too much")
    others = served(placed(0, "v"), placed(1, None), placed(1, None), name="other")
    assert not findings(host(served(placed(0), placed(1)), others))
