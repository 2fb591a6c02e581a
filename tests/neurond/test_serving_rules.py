"""Findings on processes that serve models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.snapshots.rates import served_rates
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.model import CoreWork, Finding, ModelPlacement, ServedModel, Snapshot, TrainingCounters
from neurontools.model.execution import LatencyCounts
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
