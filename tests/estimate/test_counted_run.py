"""What is read of a summary of neuron-run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.estimate import CountedRun, EstimateError
from tests.harness.counted_runs import GIB, counted, summary


def test_quantities_are_of_a_step_of_one_worker() -> None:
    run = counted(workers=2, collectives_total=30, collective_bytes=5000)
    assert (run.worker_count, run.steps_total, run.samples, run.batch_samples) == (2, 10, 8, 8)
    assert (run.flops, run.executions, run.tensors) == (2e12, 1, 400)
    assert (run.collectives, run.collective_bytes) == (3, 500)
    assert run.batches_per_execution == 1
    assert run.fixed_bytes == 4 * GIB


def test_the_worker_with_the_most_work_counts_and_the_most_memory() -> None:
    document = summary(workers=2)
    document["ranks"][0] |= {"flop_total": 10e12, "flops_by_dtype": {"float32": 10e12}, "hbm_peak_bytes": 11 * GIB}
    run = CountedRun.from_summary(document)
    assert run.flops == 2e12
    assert run.peak_bytes == 11 * GIB


def test_what_was_not_counted_is_not_known() -> None:
    run = counted(samples_total=None, batches_total=None, batch_samples=None, gradient_bytes=None)
    assert (run.samples, run.batch_samples, run.batches_per_execution, run.fixed_bytes) == (None, None, None, None)


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
