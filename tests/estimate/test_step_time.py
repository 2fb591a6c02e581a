"""The time of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.estimate import EstimateError, estimate
from neurontools.estimate.machine import Machine
from neurontools.estimate.step_time import step_time
from tests.harness.counted_runs import GIB, counted


def test_a_machine_has_logical_cores_and_their_share_of_the_memory() -> None:
    trn1, trn2 = Machine.of("trn1.32xlarge"), Machine.of("trn2.48xlarge")
    assert (trn1.core_count, trn1.core_memory_bytes) == (32, 16 * GIB)
    assert (trn2.core_count, trn2.core_memory_bytes) == (64, 24 * GIB)
    assert (trn1.peak_flops["float32"], trn1.peak_flops["bfloat16"]) == (23.75e12, 95e12)
    assert trn2.peak_flops["bfloat16"] == 2 * 79e12


@pytest.mark.parametrize(("name", "told"), [("trn9.large", "trn9.large"), ("inf1.xlarge", "nothing trains on them")])
def test_a_type_that_can_not_be_estimated_is_refused(name: str, told: str) -> None:
    with pytest.raises(EstimateError, match=told):
        Machine.of(name)


def test_each_element_type_has_its_own_peak() -> None:
    machine = Machine.of("trn1.32xlarge")
    assert machine.seconds_at_peak({"float32": 23.75e12}) == 1
    assert machine.seconds_at_peak({"float32": 23.75e12, "bfloat16": 95e12}) == 2
    assert machine.seconds_at_peak({"float64": 23.75e12}) == 1  # without a rate of its own


def test_a_step_is_between_all_at_once_and_one_after_the_other() -> None:
    step = step_time(counted(), Machine.of("trn1.32xlarge"))
    assert step.total.low == pytest.approx(step.compute.low)
    assert step.total.high == pytest.approx(step.compute.high + step.host.high)
    assert step.binds == "compute"


def test_many_executions_are_bound_by_the_host() -> None:
    step = step_time(counted(executions_total=10_000, executed_tensors_total=4_000_000), Machine.of("trn1.32xlarge"))
    assert step.binds == "host launches"


def test_what_a_graph_takes_and_gives_is_moved_at_least() -> None:
    machine = Machine.of("trn1.32xlarge")
    run = counted(moved_bytes=10_000 * GIB)
    assert machine.memory_bytes_per_second is not None
    step = step_time(run, machine)
    assert step.binds == "memory"
    assert step.total.low == pytest.approx(1000 * GIB / machine.memory_bytes_per_second)


def test_collectives_wait_only_where_there_are_others() -> None:
    machine = Machine.of("trn1.32xlarge")
    alone = counted(collectives_total=10, collective_bytes=10 * GIB)
    assert step_time(alone, machine).collectives.high == 0
    two = step_time(replace(alone, worker_count=2), machine).collectives
    assert two.low == pytest.approx(58e-6 + GIB / 103.9e9)
    assert two.high == pytest.approx(300e-6 + GIB / 52.8e9)


def test_rates_follow_from_the_time_of_a_step() -> None:
    made = estimate(counted(workers=2), "trn1.32xlarge")
    assert made.samples_per_second is not None
    assert made.mfu is not None
    assert made.samples_per_second.high == pytest.approx(16 / made.step.total.low)
    assert made.mfu.low == pytest.approx(2e12 / 95e12 / made.step.total.high)
