"""Estimates and advice as a user and a client get them: the whole text and the whole document of many runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from neurontools.estimate import Calibration, CalibrationRow, counted_models, estimate, estimate_inference
from neurontools.estimate.inference_report import format_inference, inference_document
from neurontools.estimate.instances import Price
from neurontools.estimate.parallelism import Degrees, scale_run
from neurontools.estimate.report import estimate_document, format_estimates, peer_document
from neurontools.estimate.training import peer_measurement
from tests.harness.counted_runs import GIB, bert, counted, summary
from tests.harness.pictures import is_as_stored, rounded

STORED = Path(__file__).parent / "golden" / "estimates.txt"
TODAY, LATER = date(2026, 11, 22), date(2028, 1, 1)
TRN1 = "trn1.32xlarge"
FLOPS = counted().flops / 8
CALIBRATION = Calibration.of([CalibrationRow(TRN1, "fp32", 8, 8 / 0.3), CalibrationRow(TRN1, "fp32", 8, 30, 4)], FLOPS)
DECODER = ["aten::embedding", "aten::bmm", "aten::_softmax", "aten::rsqrt"]
UNCOUNTED = {"samples_total": None, "batches_total": None, "batch_samples": None, "optimizer_state_bytes": None}
# Of each run: what is changed, the instance type, and the samples of an epoch.
RUNS: list[tuple[dict[str, Any], str, int | None]] = [
    ({"workers": 2, "collectives_total": 25, "collective_bytes": 10 * GIB, "hbm_peak_bytes": 14 * GIB}, TRN1, 1000),
    ({"workers": 3, "operators": DECODER, "flops_by_dtype": {"float32": 5e12, "bfloat16": 15e12}}, "inf2.xlarge", None),
    ({"operators": ["aten::convolution"], "samples_total": 80_000, "batch_samples": 8000}, "trn2.48xlarge", None),
    (UNCOUNTED, "trn2u.48xlarge", None),
    ({"hbm_peak_bytes": 20 * GIB}, TRN1, None),
    ({"executions_total": 100, "executed_tensors_total": 400_000, "collectives_total": 3000}, "trn1.2xlarge", None),
]


def trainings() -> Iterator[str]:
    """The texts of some runs and the documents of all, then tables of several types, batches and measurements."""
    made = [estimate(counted(**changes), name, epoch_samples=epoch) for changes, name, epoch in RUNS]
    for each in made[:4]:
        yield format_estimates([each], TODAY, lists_unpredicted=each.run.worker_count == 2)
    yield from (rounded(estimate_document(each)) for each in made)
    calibrated = estimate(counted(), TRN1, calibration=CALIBRATION)
    yield format_estimates([calibrated], LATER)
    yield rounded(estimate_document(calibrated))
    yield format_estimates([estimate(counted(), name) for name in (TRN1, "trn2.48xlarge", "trn2u.48xlarge")], TODAY)
    run = counted(workers=2)
    larger = estimate(scale_run(run, None, 16), "inf2.xlarge", epoch_samples=3_600_000)
    too_many = estimate(scale_run(run, Degrees(4, 2), 8), "inf2.xlarge")
    row = CalibrationRow("p4d.24xlarge", "bf16", batch=32, samples_per_second=1392.64, workers=8)
    price = Price("p4d.24xlarge", "SageMaker", 37.69, None, None, "the article")
    peers = [peer_measurement(row, [price], 3_600_000), peer_measurement(replace(row, workers=None), [], None)]
    yield format_estimates([larger, too_many], TODAY, run, peers=peers)
    yield rounded(estimate_document(larger))
    yield from (rounded(peer_document(peer)) for peer in peers)


def inferences() -> Iterator[str]:
    """Models by themselves, and in a table of two types."""
    for document in (
        bert(),
        bert(cores=[1], flops_by_dtype={"float32": 22.35e9}, batch_samples=10, padded_samples=250),
        bert(cores_per_execution=4, cores=[0, 1, 2, 3], moved_bytes=100 * GIB, operators=DECODER),
        summary(steps_total=0, flops_by_dtype={"bfloat16": 1e9}, operators=["aten::convolution"]),
    ):
        (model,) = counted_models(document)
        made = estimate_inference(model, "inf2.xlarge")
        yield format_inference([made], TODAY)
        yield rounded(inference_document(made))
    yield format_inference([made, estimate_inference(model, "trn2u.48xlarge")], LATER)


def test_estimates_are_as_stored() -> None:
    """The file has each line once, although many estimates end with the same sentences."""
    lines = dict.fromkeys("\n".join((*trainings(), *inferences())).splitlines())
    assert is_as_stored("\n".join(lines), STORED), "look at the difference; then UPDATE_GOLDEN=1 writes it"
