"""Shares of vCPU time between two states of the kernel's counters."""

from __future__ import annotations

import pytest

from neurontools.model import VcpuTimes, vcpu_time


def times(user: float, idle: float) -> VcpuTimes:
    return VcpuTimes(user, 0.0, 0.0, idle, 0.0, 0.0, 0.0)


def test_shares_of_each_vcpu_and_of_all() -> None:
    usage = vcpu_time.difference((times(11, 93), times(4, 100)), (times(10, 90), times(0, 100)))
    assert usage is not None
    average, vcpus = usage
    assert [(vcpu.user_ratio, vcpu.idle_ratio) for vcpu in vcpus] == [(0.25, 0.75), (1.0, 0.0)]
    assert (average.user_ratio, average.idle_ratio) == (0.625, 0.375)


def test_a_vcpu_whose_clocks_stood_still_gets_the_average() -> None:
    usage = vcpu_time.difference((times(2, 2), times(5, 5)), (times(1, 1), times(5, 5)))
    assert usage is not None
    assert usage[1][1] == usage[0]


def test_a_clock_that_steps_back_counts_as_still() -> None:
    usage = vcpu_time.difference((times(2, 4),), (times(1, 5),))
    assert usage is not None
    assert (usage[0].user_ratio, usage[0].idle_ratio) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("later", "earlier"),
    [((), ()), ((times(1, 1),), ()), ((times(1, 1),), (times(1, 1),)), ((times(1, 1),), (times(0, 0),) * 2)],
)
def test_what_can_not_be_told(later: tuple[VcpuTimes, ...], earlier: tuple[VcpuTimes, ...]) -> None:
    assert vcpu_time.difference(later, earlier) is None
