"""What changes would do."""

from __future__ import annotations

from dataclasses import replace

from neurontools.estimate import Calibration, CalibrationRow, CountedRun, estimate
from neurontools.estimate.what_if import WhatIf
from tests.harness.counted_runs import GIB, counted


def found(run: CountedRun, calibration: Calibration | None = None) -> dict[str, WhatIf]:
    """The changes by the first word of their names."""
    made = estimate(run, "trn1.32xlarge", calibration=calibration).what_ifs
    return {each.change.replace("=", " ").split()[0]: each for each in made}


def test_bfloat16_is_up_to_four_times_as_fast_and_never_slower() -> None:
    bf16 = found(counted())["bfloat16"].speedup
    assert bf16 is not None
    assert 1 <= bf16.low < bf16.high <= 4
    assert "bfloat16" not in found(counted(flops_by_dtype={"bfloat16": 20e12}))


def test_batches_an_execution_help_where_the_host_binds() -> None:
    launches = counted(flop_total=1e9, flops_by_dtype={"bfloat16": 1e9}, moved_bytes=0)
    many = found(launches)["batches_per_execution"].speedup
    assert many is not None
    assert 8 < many.low <= many.high <= 10
    few = found(counted(flops_by_dtype={"float32": 20e15}, flop_total=20e15))["batches_per_execution"].speedup
    assert few is not None
    assert 1 <= few.low <= few.high < 1.1


def test_many_batches_an_execution_are_not_advised_again() -> None:
    assert "batches_per_execution" not in found(counted(executions_total=1))


def test_all_cores_are_at_most_as_many_times_as_fast() -> None:
    cores = found(counted())["a"].speedup
    assert cores is not None
    assert 1 < cores.low <= cores.high <= 32
    assert "a" not in found(counted(workers=32))


def test_accumulation_is_told_where_collectives_matter() -> None:
    talkative = counted(workers=32, collectives_total=1000, collective_bytes=100 * GIB)
    accumulated = found(talkative)["gradients"].speedup
    assert accumulated is not None
    assert 1 <= accumulated.low < accumulated.high <= 4
    assert "gradients" not in found(counted(workers=32, collectives_total=10, collective_bytes=1000))


def test_checkpointing_is_told_where_memory_is_short_and_costs_a_third_of_compute() -> None:
    slower = found(counted(hbm_peak_bytes=12 * GIB))["activation"].speedup
    assert slower is not None
    assert 0.74 < slower.low <= slower.high <= 1
    assert "activation" not in found(counted(hbm_peak_bytes=GIB))


def test_a_larger_batch_is_told_only_where_its_sign_is_known() -> None:
    run = counted()
    assert "a larger batch" not in [each.change for each in estimate(run, "trn1.32xlarge").what_ifs]
    rows = [
        CalibrationRow("trn1.32xlarge", "fp32", 8, 8 / 0.30),
        CalibrationRow("trn1.32xlarge", "fp32", 8, 8 / 0.299, 10),
    ]
    calibration = Calibration.of(rows, run.flops / 8)
    ten = replace(run, executions=0.1)
    assert "a larger batch" in [
        each.change for each in estimate(ten, "trn1.32xlarge", calibration=calibration).what_ifs
    ]
