"""What is read of a summary of neuron-run: whether its training fits, the time of a step, and what would change it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.estimate import Calibration, CalibrationRow, CountedRun, EstimateError, estimate
from neurontools.estimate.instances import InstanceHardware
from neurontools.estimate.training import step_time
from tests.harness.counted_runs import GIB, counted, summary

TRN1 = "trn1.32xlarge"


def test_quantities_are_of_a_step_of_one_worker() -> None:
    run = counted(workers=2, collectives_total=30, collective_bytes=5000)
    assert (run.worker_count, run.steps_total, run.samples, run.batch_samples) == (2, 10, 8, 8)
    assert (run.flops, run.executions, run.tensors) == (2e12, 1, 400)
    assert (run.collectives, run.collective_bytes) == (3, 500)
    assert run.batches_per_execution == 1
    assert run.fixed_bytes == 4 * GIB
    run = counted(samples_total=None, batches_total=None, batch_samples=None, gradient_bytes=None)
    assert (run.samples, run.batch_samples, run.batches_per_execution, run.fixed_bytes) == (None, None, None, None)


def test_the_worker_with_the_most_work_counts_and_the_most_memory() -> None:
    document = summary(workers=2)
    document["ranks"][0] |= {"flop_total": 10e12, "flops_by_dtype": {"float32": 10e12}, "hbm_peak_bytes": 11 * GIB}
    run = CountedRun.from_summary(document)
    assert run.flops == 2e12
    assert run.peak_bytes == 11 * GIB


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps_total": 0}, "no training step was seen"),
        ({"flops_by_dtype": {}}, "no matrix was multiplied on the device"),
        ({"executions_total": "many"}, "executions_total is not a number"),
    ],
)
def test_a_run_with_nothing_to_estimate_says_so(changes: dict[str, object], told: str) -> None:
    with pytest.raises(EstimateError, match=told):
        counted(**changes)


@given(st.dictionaries(st.sampled_from(["workers", "ranks", "wall_seconds"]), st.none() | st.integers() | st.text()))
def test_anything_else_is_refused_in_a_line(document: dict[str, object]) -> None:
    with pytest.raises(EstimateError) as refused:
        CountedRun.from_summary(document)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "fits", "headroom", "rest", "largest_batch"),
    [
        ({}, True, 6, 6, 16),  # 4 GiB stay, and 8 samples take 6 of the other 12
        ({"hbm_peak_bytes": 17 * GIB}, False, -1, 13, 7),
        ({"optimizer_state_bytes": 20 * GIB, "hbm_peak_bytes": 30 * GIB}, False, -14, 8, 0),
        ({"optimizer_state_bytes": None}, True, 6, None, None),
    ],
)
def test_what_is_left_of_the_memory_and_the_batch_that_fills_it(
    changes: dict[str, object], fits: bool, headroom: int, rest: int | None, largest_batch: int | None
) -> None:
    fit = estimate(counted(**changes), TRN1).fit
    assert (fit.fits, fit.headroom_bytes, fit.largest_batch) == (fits, headroom * GIB, largest_batch)
    assert fit.rest_bytes == (None if rest is None else rest * GIB)


def test_a_machine_has_logical_cores_and_their_share_of_the_memory() -> None:
    trn1, trn2 = InstanceHardware.from_catalog(TRN1), InstanceHardware.from_catalog("trn2.48xlarge")
    assert (trn1.core_count, trn1.core_memory_bytes) == (32, 16 * GIB)
    assert (trn2.core_count, trn2.core_memory_bytes) == (64, 24 * GIB)
    assert (trn1.peak_flops["float32"], trn1.peak_flops["bfloat16"]) == (23.75e12, 95e12)
    assert trn2.peak_flops["bfloat16"] == 2 * 79e12
    fast = dict.fromkeys(("bfloat16", "float16", "tf32", "float8_e4m3fn", "float8_e5m2"), 158e12)
    assert InstanceHardware.from_catalog("trn3s.48xlarge").peak_flops == {"float32": 40e12, **fast}
    assert trn1.seconds_at_peak({"float32": 23.75e12}) == 1
    assert trn1.seconds_at_peak({"float32": 23.75e12, "bfloat16": 95e12}) == 2
    assert trn1.seconds_at_peak({"float64": 23.75e12}) == 1  # without a rate of its own
    for name, told in (("trn9.large", "trn9.large"), ("inf1.xlarge", "nothing trains on them")):
        with pytest.raises(EstimateError, match=told):
            InstanceHardware.from_catalog(name)


def test_an_unmeasured_step_is_four_wide_around_its_parts_at_once_and_one_after_the_other() -> None:
    machine = InstanceHardware.from_catalog(TRN1)
    step, small = step_time(counted(), machine), step_time(counted(**HOST_BOUND), machine)
    compute, host = 2 / 23.75 / 0.64, 0.27e-3 + 400 * 190e-6
    assert step.total.high == pytest.approx(2 * (compute * (compute + host)) ** 0.5)
    assert step.total.low == pytest.approx(2 / 23.75)  # no step is faster than the peak
    assert (step.binds, small.binds) == ("compute", "host launches")
    assert small.total.middle == pytest.approx(host, rel=0.01)
    assert small.total.high == pytest.approx(4 * small.total.low)
    decoder = step_time(counted(operators=["aten::embedding", "aten::bmm", "aten::_softmax", "aten::rsqrt"]), machine)
    assert decoder.total.middle == pytest.approx(2 / 23.75 / 0.27)
    assert decoder.with_images is None
    vision = step_time(counted(operators=["aten::convolution"], samples_total=80_000), machine)
    images = 8_000 * 18e-3 / 128  # vCPUs
    assert vision.with_images is not None
    assert vision.with_images.middle == pytest.approx((images * (images + compute + host)) ** 0.5)


def test_many_executions_are_bound_by_the_host_and_what_graphs_move_by_the_memory() -> None:
    machine = InstanceHardware.from_catalog(TRN1)
    assert (
        step_time(counted(executions_total=10_000, executed_tensors_total=4_000_000), machine).binds == "host launches"
    )
    assert machine.memory_bytes_per_second is not None
    step = step_time(counted(moved_bytes=10_000 * GIB), machine)
    assert step.binds == "memory"
    assert step.total.low == pytest.approx(1000 * GIB / machine.memory_bytes_per_second)


def test_collectives_wait_only_where_there_are_others() -> None:
    machine = InstanceHardware.from_catalog(TRN1)
    alone = counted(collectives_total=10, collective_bytes=10 * GIB)
    assert step_time(alone, machine).collectives.high == 0
    two = step_time(replace(alone, worker_count=2), machine).collectives
    assert two.low == pytest.approx(58e-6 + GIB / 103.9e9)
    assert two.high == pytest.approx(300e-6 + GIB / 52.8e9)


HOST_BOUND = {"flop_total": 1e9, "flops_by_dtype": {"bfloat16": 1e9}, "moved_bytes": 0}


def test_a_larger_batch_is_told_only_where_its_sign_is_known() -> None:
    run = counted()
    assert "a larger batch" not in [each.change for each in estimate(run, TRN1).what_ifs]
    rows = [CalibrationRow(TRN1, "fp32", 8, 8 / 0.30), CalibrationRow(TRN1, "fp32", 8, 8 / 0.299, 10)]
    made = estimate(replace(run, executions=0.1), TRN1, calibration=Calibration.of(rows, run.flops / 8))
    assert "a larger batch" in [each.change for each in made.what_ifs]
