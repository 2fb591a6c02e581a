"""What is told of an estimate."""

from __future__ import annotations

import json
from datetime import date

import pytest

from neurontools.estimate import Calibration, CalibrationRow, estimate
from neurontools.estimate.document import document
from neurontools.estimate.report import dollars, text
from tests.harness.counted_runs import GIB, counted

TODAY = date(2026, 11, 22)


def test_counted_listed_and_estimated_stand_apart() -> None:
    told = text([estimate(counted(), "trn1.32xlarge", epoch_samples=1000)], TODAY)
    for line in (
        "a step   2.0 TFLOP (100% fp32), 1 execution(s)",
        "HBM (counted)    10.0 GB of 16.0 GB a core, 6.0 GB left",
        "weights 1.0 GB, gradients 1.0 GB, optimizer 2.0 GB, activations and the rest 6.0 GB",
        "16 a worker, if all but weights, gradients and optimizer grow with it",
        "cores (counted)  1 used of 32 paid",
        "price (list)     $21.5/h on demand (us-east-1, 2026-07-20)",
        "held 5 of 7 families",
        "Not predicted: autocast (AMP)",
    ):
        assert line in told
    assert "step (estimate)" in told
    assert " an epoch" in told
    assert "Warning" not in told
    assert max(map(len, told.splitlines())) <= 130


def test_what_does_not_fit_is_said_first() -> None:
    told = text([estimate(counted(hbm_peak_bytes=20 * GIB), "trn1.32xlarge")], TODAY)
    assert "trn1.32xlarge      DOES NOT FIT\n" in told
    assert "4.0 GB too much" in told
    assert "DOES NOT FIT: 3 workers, 2 cores" in text([estimate(counted(workers=3), "inf2.xlarge")], TODAY)


def test_several_types_are_a_table() -> None:
    names = ("trn1.32xlarge", "inf2.xlarge", "trn2.48xlarge", "trn2u.48xlarge")
    told = text([estimate(counted(), name) for name in names], TODAY)
    rows = [line for line in told.splitlines() if line.startswith(("| trn", "| inf"))]
    assert len(rows) == 4
    assert "(Capacity Block)" in rows[2]
    assert rows[3].rstrip(" |").endswith("-")


def test_unknown_is_a_dash() -> None:
    run = counted(samples_total=None, batches_total=None, batch_samples=None)
    told = text([estimate(run, "trn2u.48xlarge")], TODAY)
    assert "  largest batch    -\n" in told
    assert "  samples/s        -\n" in told
    assert "none is published; give your own with --prices" in told


def test_a_calibration_is_told_instead_of_the_coverage() -> None:
    run = counted()
    calibration = Calibration.of([CalibrationRow("trn1.32xlarge", "fp32", 8, 8 / 0.3)], run.flops / 8)
    told = text([estimate(run, "trn1.32xlarge", calibration=calibration)], TODAY)
    assert "calibrated on 1 measured row(s)" in told
    assert "families" not in told


def test_old_prices_are_warned_of() -> None:
    assert "older than a year" in text([estimate(counted(), "trn1.32xlarge")], date(2028, 1, 1))


@pytest.mark.parametrize(
    ("usd", "told"),
    [
        (0.0, "$0.00"),
        (5.687e-05, "$0.0000569"),
        (0.0504, "$0.0504"),
        (0.999, "$0.999"),
        (4.561, "$4.56"),
        (1234.5, "$1,234"),
    ],
)
def test_dollars_have_three_digits(usd: float, told: str) -> None:
    assert dollars(usd) == told


def test_the_document_has_the_same_and_is_json() -> None:
    made = estimate(counted(), "trn1.32xlarge")
    read = json.loads(json.dumps(document(made), allow_nan=False))
    assert read["counted"]["largest_batch"] == 16
    assert read["estimated"]["step_seconds"] == [made.step.total.low, made.step.total.high]
    assert read["costs"][0]["date"] == "2026-07-20"
    assert read["coverage"] == [5, 7]
    assert {each["change"] for each in read["what_ifs"]} == {each.change for each in made.what_ifs}
