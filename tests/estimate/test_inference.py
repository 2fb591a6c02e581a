"""Estimates and advice for scripts that only execute models: counts, latency by batch, changes, and bad summaries."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from neurontools.estimate import EstimateError, Interval, counted_models, estimate_inference
from neurontools.estimate.families import CAUSAL_ATTENTION, ModelFamily, family_of
from neurontools.estimate.inference import LATENCY_FITS
from neurontools.estimate.inference_rules import INFERENCE_RULES
from neurontools.estimate.instances import InstanceHardware
from neurontools.estimate.rules import find_advice
from tests.harness.counted_runs import BERT, GIB, MIB, bert, summary
from tests.harness.neuron_run import neuron_run, stable
from tests.harness.paths import ROOT
from tests.harness.pictures import is_as_stored

SERVED = Path(__file__).parent / "golden" / "served.txt"
SCRIPT = """
import torch, torch_neuronx, torch_xla.core.xla_model as xm
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).eval()
traced = torch_neuronx.dynamic_batch(torch_neuronx.trace(model, torch.rand(4, 256)))
for _ in range(10): traced(torch.rand(6, 256))  # two executions of four rows, two rows are padding
"""
UNTRACED = """
import torch, torch_xla.core.xla_model as xm
model = torch.nn.Linear(256, 1024).to(xm.xla_device()).eval()
for _ in range(4): model(torch.rand(2, 256).to(xm.xla_device())).cpu()
"""


def speedups(document: dict[str, Any]) -> dict[str, Interval | None]:
    return {each.kind: each.speedup for each in estimate_inference(counted_models(document)[0], "inf2.xlarge").what_ifs}


def test_a_script_that_only_infers_gets_latency_and_throughput_by_batch(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = neuron_run(tmp_path, "--estimate", "inf2.xlarge", "--summary-json", "out.json", "script.py")
    document = json.loads((tmp_path / "out.json").read_text())
    (made,) = document["estimates"]
    assert made["counted"]["flops_by_dtype"] == {"float32": 4 * 2 * 2 * 256 * 1024}
    assert made["counted"]["padding_ratio"] == 20 / 80
    (rank,) = document["ranks"]
    models = [*rank["traced_models"], *rank["served_models"], made["counted"], *document["advice"]]
    lines = [json.dumps(stable(each)) for each in models]
    assert is_as_stored("\n".join(lines), SERVED), "look at the difference; then UPDATE_GOLDEN=1 writes it"
    assert max(len(line) for line in ran.stderr[ran.stderr.index("counted  ") :].splitlines()) <= 120
    (tmp_path / "script.py").write_text(UNTRACED)
    table = neuron_run(tmp_path, "--estimate", "inf2.xlarge,trn1.32xlarge", "script.py").stderr
    assert "the mean execution: 4 executions" in table
    assert "1 of 32" in table


def test_latency_is_that_of_published_rows_and_throughput_uses_all_cores() -> None:
    (model,) = counted_models(bert())
    made = estimate_inference(model, "inf2.xlarge")
    assert model.family is ModelFamily.ENCODER
    assert 0.999e-3 in made.traced.latency_seconds  # AWS's row
    assert made.traced.latency_seconds.high / made.traced.latency_seconds.low < 2
    eight = next(each for each in made.batches if each.batch_samples == 8)
    assert 5.974e-3 in eight.latency_seconds
    assert eight.samples_per_second == eight.latency_seconds.inverse(2 * 8)
    assert eight.core_bytes == 280 * MIB
    assert eight.million_usd is not None
    assert eight.million_usd.high == pytest.approx(0.7582 / 3600 * 1e6 * eight.latency_seconds.high / 16)
    largest = estimate_inference(counted_models(bert(activation_bytes=5 * GIB))[0], "inf2.xlarge").batches[-1]
    assert largest.batch_samples == 2  # the next one needs more than 16 GiB
    slow = counted_models(bert(moved_bytes=100 * GIB))[0]
    bandwidth = InstanceHardware.from_catalog("inf2.xlarge").memory_bytes_per_second or 0
    assert estimate_inference(slow, "inf2.xlarge").traced.latency_seconds.high > 100 * GIB / bandwidth


@pytest.mark.parametrize(
    ("kind", "changes", "low", "high"),
    [
        ("cores", {"cores": [1]}, 2, 2),
        ("bfloat16", {"flops_by_dtype": {"float32": 22.35e9}}, 2, 4),
        ("batch", {"flops_by_dtype": {"bfloat16": 1e9}}, 2, 64),
        ("buckets", {"batch_samples": 10, "padded_samples": 500}, 1, 2),
    ],
)
def test_a_change_is_predicted_and_advised_where_it_helps(
    kind: str, changes: dict[str, Any], low: float, high: float
) -> None:
    speedup = speedups(bert(**changes))[kind]
    assert speedup is not None
    assert low <= speedup.low <= speedup.high <= high
    big = {"batch_samples": 64, "flops_by_dtype": {"bfloat16": 64 * 22.35e9}}
    assert speedups(bert(**big)) == {}
    rule = {"bfloat16": "inference-float32", "buckets": "inference-padding"}.get(kind, f"inference-{kind}")
    assert rule in INFERENCE_RULES
    assert rule in {each.rule for each in find_advice(bert(**changes))}
    assert rule not in {each.rule for each in find_advice(bert(**changes), [rule])}
    assert find_advice(bert(**changes, executions_total=9)) == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no list of ranks"),
        (summary(), "has training steps"),
        (summary(steps_total=0, operators=["aten::linear_backward"]), "computes gradients"),
        (bert(flops_by_dtype=[]), "malformed traced model"),
        (bert(weight_bytes="many"), "weight_bytes is not a number"),
        (bert(executions_total=0), "neither a training step nor a matrix multiplication"),
        (summary(steps_total=0, executions_total=0), "neither a training step nor a matrix multiplication"),
    ],
)
def test_summaries_without_an_inference_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(EstimateError, match=message):
        counted_models(document)
    assert find_advice(document | {"workers": 1}) == [] or "steps" in message


@pytest.mark.parametrize(
    ("operators", "family"),
    [
        (BERT, ModelFamily.ENCODER),
        ([*BERT, CAUSAL_ATTENTION], ModelFamily.DECODER),
        (["aten::embedding", "aten::_softmax", "aten::bmm", "aten::rsqrt"], ModelFamily.DECODER),
        (["aten::convolution_overrideable", BERT[2]], ModelFamily.VISION),
        (["aten::convolution_overrideable", "aten::_softmax", "aten::linear"], ModelFamily.CONVOLUTION),
        ([*BERT, "aten::convolution_overrideable"], ModelFamily.OTHER),
        ([], ModelFamily.OTHER),
    ],
)
def test_families_are_told_by_operators(operators: list[str], family: ModelFamily) -> None:
    assert family_of(operators) is family


def test_the_fits_are_those_of_the_published_rows() -> None:
    rows = tomllib.loads((ROOT / "scripts" / "estimate-rows.toml").read_text())["inference"]["rows"]
    peak = InstanceHardware.from_catalog("inf2.xlarge").peak_flops["bfloat16"]
    for family, *_, gflop, batch, milliseconds in rows:
        interval = LATENCY_FITS[ModelFamily(family)].seconds(1e9 * gflop * batch / peak, 0.0)
        assert 1e-3 * milliseconds in interval
        assert interval.high / interval.low < 2.5
