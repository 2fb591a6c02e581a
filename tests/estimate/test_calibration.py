"""What measured rows tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.estimate import Calibration, CalibrationRow, EstimateError, estimate, read_rows
from tests.harness.counted_runs import counted, summary

SAMPLE_FLOPS = 2e12 / 8


def row(seconds: float, batches_per_execution: float = 1.0) -> CalibrationRow:
    """A step of 8 samples of the counted run on trn1.32xlarge."""
    return CalibrationRow("trn1.32xlarge", "fp32", 8, 8 / seconds, batches_per_execution)


def test_two_rows_tell_compute_from_host() -> None:
    calibration = Calibration.of([row(0.30, 2), row(0.20, 20)], SAMPLE_FLOPS)
    assert calibration.overlapping.host_seconds == pytest.approx(0.60)
    assert calibration.overlapping.slowdown == pytest.approx(0.20 * 23.75 / 2)
    assert calibration.adding.host_seconds == pytest.approx(0.1 / 0.45)
    assert calibration.adding.seconds(2 / 23.75, 0.5) == pytest.approx(0.30)


def test_a_measured_row_is_within_its_own_estimate_and_narrows_it() -> None:
    run = counted()
    wide = estimate(run, "trn1.32xlarge").step.total
    for rows in ([row(0.25)], [row(0.25), row(0.26)], [row(0.25), row(0.2, 10)]):
        narrow = estimate(run, "trn1.32xlarge", calibration=Calibration.of(rows, SAMPLE_FLOPS)).step.total
        assert 0.25 in narrow
        assert narrow.high / narrow.low < wide.high / wide.low


def test_one_row_leaves_open_whether_the_host_or_compute_took_the_time() -> None:
    calibration = Calibration.of([row(1.0)], SAMPLE_FLOPS)
    ten = estimate(
        counted(executions_total=1, executed_tensors_total=400), "trn1.32xlarge", calibration=calibration
    ).step.total
    assert ten.low < 0.3
    assert ten.high > 1.0
    fast = [row(2 / 23.75 / 0.6)]  # 0.6 of the peak: nearly all of the time is compute, or some is the host's
    open_host = Calibration.of(fast, SAMPLE_FLOPS, tensors_per_execution=400)
    made = estimate(counted(), "trn1.32xlarge", calibration=open_host)
    (speedup,) = (each.speedup for each in made.what_ifs if each.change == "batches_per_execution=10")
    assert speedup is not None
    assert speedup.low == pytest.approx(1.0)
    assert speedup.high > 1.05
    assert open_host.execution_seconds.low == 0
    assert open_host.execution_seconds.high == pytest.approx(0.27e-3 + 400 * 67e-6)  # the device may hide it


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row(0.1), row(0.1), row(9.0), row(9.0)], "contradict each other"),
        ([row(0.01)], "at its peak"),
        ([CalibrationRow("trn1.32xlarge", "bf16", 8, 1.0, workers=64)], "64 workers on trn1.32xlarge, which has 32"),
    ],
)
def test_rows_that_can_not_be_are_refused(rows: list[CalibrationRow], told: str) -> None:
    with pytest.raises(EstimateError, match=told):
        Calibration.of(rows, SAMPLE_FLOPS)


def test_rows_are_read_from_toml_and_from_a_summary_of_a_real_instance(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(
        '[[row]]\ninstance_type = "inf2.xlarge"\ndtype = "bf16"\nbatch = 8\nbatches_per_execution = 10\n'
        "samples_per_second = 1027.39\nworkers = 2\n"
    )
    assert read_rows(path) == [CalibrationRow("inf2.xlarge", "bf16", 8, 1027.39, 10, 2)]
    path.write_text(json.dumps(summary()))
    assert read_rows(path) == [CalibrationRow("trn1.2xlarge", "fp32", 8, 80 / 9, 1.0, 1)]


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 100)), min_size=1, max_size=6))
def test_any_rows_calibrate_or_contradict(measured: list[tuple[float, float]]) -> None:
    try:
        calibration = Calibration.of([row(*each) for each in measured], SAMPLE_FLOPS)
    except EstimateError:
        return
    total = estimate(counted(), "trn1.32xlarge", calibration=calibration).step.total
    assert 0 < total.low <= total.high < float("inf")
    assert 0 < calibration.eta.low <= calibration.eta.high <= 1
