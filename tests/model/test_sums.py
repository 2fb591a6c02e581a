"""What is added up and compared: memory, cores, vCPU time, latencies, and the records of a process."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import (
    DeviceMemory,
    HostMemory,
    LatencyHistogram,
    LatencyPercentiles,
    Process,
    VcpuTimes,
    execution,
    host,
    logical_cores,
    memory_categories,
    sum_device_memory,
    sum_host_memory,
)
from neurontools.model.execution import (
    BUCKET_COUNT,
    BUCKET_GROWTH,
    SMALLEST_LATENCY_SECONDS,
    bucket_index,
    bucket_seconds,
)
from neurontools.model.snapshot import count_key, counters_continue
from neurontools.util.units import sum_known
from tests.harness.snapshots import process_of, snapshot_of

UNKNOWN = DeviceMemory(**dict.fromkeys((field.name for field in fields(DeviceMemory)), None))
sizes = st.none() | st.integers(0, 2**40)
memories = st.builds(DeviceMemory, **{field.name: sizes for field in fields(DeviceMemory)})


def test_the_total_is_that_of_the_known_categories() -> None:
    assert DeviceMemory().total_bytes == 0
    assert DeviceMemory(constants_bytes=3, tensors_bytes=None, collectives_bytes=4).total_bytes == 7
    assert HostMemory(tensors_bytes=3, dma_rings_bytes=4).total_bytes == 7
    assert UNKNOWN.total_bytes is None
    assert replace(UNKNOWN, notifications_bytes=0).total_bytes == 0
    first = "constants model_code model_shared_scratchpad runtime_memory tensors".split()
    assert list(memory_categories(DeviceMemory()))[:5] == [f"{name}_bytes" for name in first]
    assert (len(memory_categories(DeviceMemory())), len(memory_categories(HostMemory()))) == (11, 8)


@given(st.lists(memories, min_size=1, max_size=5))
def test_a_category_is_unknown_in_a_sum_only_where_every_part_is(parts: list[DeviceMemory]) -> None:
    for name, summed in memory_categories(sum_device_memory(parts)).items():
        known = [size for part in parts if (size := getattr(part, name)) is not None]
        assert summed == (sum(known) if known else None)
    assert (sum_device_memory(parts).total_bytes or 0) == sum(part.total_bytes or 0 for part in parts)
    assert (sum_device_memory([]), sum_host_memory([])) == (DeviceMemory(), HostMemory())


@pytest.mark.parametrize(("lnc", "count", "size"), [(None, 64, 2), (1, 128, 1), (2, 64, 2)])
def test_physical_cores_in_groups(lnc: int | None, count: int, size: int) -> None:
    groups = logical_cores(snapshot_of("trn2.48xlarge"), lnc)
    assert [group.index for group in groups] == list(range(count))
    assert [core.index for group in groups for core in group.cores] == list(range(128))
    assert {len(group.cores) for group in groups} == {size}
    assert all(core.device_index == group.device_index for group in groups for core in group.cores)


def test_a_group_sums_up_its_cores() -> None:
    snapshot = snapshot_of("trn2.3xlarge")
    first, second, *rest = snapshot.cores
    memory = DeviceMemory(tensors_bytes=5, constants_bytes=None)
    one = replace(first, owner_pid=9, utilization_ratio=0.5, flops_per_second=3.0, memory=memory)
    other = replace(second, owner_pid=7, flops_per_second=4.0, memory=replace(memory, tensors_bytes=6))
    cores = (one, replace(other, utilization_ratio=None), *rest)
    group, idle, *_ = logical_cores(replace(snapshot, cores=cores))
    assert group.owner_pids == (7, 9)
    assert group.utilization_ratio == 0.5, "of those that are known"
    assert group.flops_per_second == 7.0
    assert (group.memory.tensors_bytes, group.memory.constants_bytes) == (11, None)
    assert (idle.owner_pids, idle.utilization_ratio, idle.flops_per_second) == ((), None, None)
    smaller = logical_cores(replace(snapshot, cores=snapshot.cores[1:]))
    assert [(group.index, len(group.cores)) for group in smaller] == [(0, 1), (1, 2), (2, 2), (3, 2)]


def times(user: float, idle: float) -> VcpuTimes:
    return VcpuTimes(user, 0.0, 0.0, idle, 0.0, 0.0, 0.0)


def test_shares_of_each_vcpu_and_of_all() -> None:
    usage = host.vcpu_usage_between((times(11, 93), times(4, 100)), (times(10, 90), times(0, 100)))
    assert usage is not None
    average, vcpus = usage
    assert [(vcpu.user_ratio, vcpu.idle_ratio) for vcpu in vcpus] == [(0.25, 0.75), (1.0, 0.0)]
    assert (average.user_ratio, average.idle_ratio) == (0.625, 0.375)
    usage = host.vcpu_usage_between((times(2, 2), times(5, 5)), (times(1, 1), times(5, 5)))
    assert usage is not None
    assert usage[1][1] == usage[0], "one whose clocks stood still gets the average"
    usage = host.vcpu_usage_between((times(2, 4),), (times(1, 5),))
    assert usage is not None
    assert (usage[0].user_ratio, usage[0].idle_ratio) == (1.0, 0.0), "a clock that steps back counts as still"
    one = (times(1, 1),)
    for later, earlier in (((), ()), (one, ()), (one, one), (one, (times(0, 0),) * 2)):
        assert host.vcpu_usage_between(later, earlier) is None


def process(attached_at: float | None = 1.0, counted_since: float | None = 0.5, pid: int = 7) -> Process:
    made = process_of(pid, "x", ())
    return replace(made, attached_at_unix_seconds=attached_at, counted_since_seconds=counted_since)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (process(), process(), True),
        (process(attached_at=1.0), process(attached_at=9.0), True),
        (process(counted_since=0.5), process(counted_since=0.6), False),
        (process(counted_since=None), process(counted_since=None), True),
        (process(counted_since=None), process(counted_since=0.5), False),
        (process(attached_at=1.0, counted_since=None), process(attached_at=9.0), False),
        (process(pid=7), process(pid=8), False),
        (process(pid=7, counted_since=None), process(pid=8, counted_since=None), False),
    ],
)
def test_a_count_goes_on_from_one_record_to_the_next(before: Process, now: Process, expected: bool) -> None:
    assert counters_continue(before, now) is expected
    assert (count_key(before) == count_key(now) is not None) <= expected


QUANTILES = [Fraction(percent, 100) for percent in (0, 1, 25, 50, 75, 90, 99, 100)]
latencies = st.floats(1e-6, 1e6)


def histogram_of(values: list[float]) -> LatencyHistogram:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_index(value)] = counts.get(bucket_index(value), 0) + 1
    ordered = dict(sorted(counts.items()))
    return LatencyHistogram(tuple(ordered), tuple(ordered.values()), sum(values))


def values_of(percentiles: LatencyPercentiles | None) -> list[float]:
    assert percentiles is not None
    return [getattr(percentiles, f"p{quantile * 100}_seconds") for quantile in QUANTILES]


@given(st.integers(1, BUCKET_COUNT - 1))
def test_the_bounds_of_a_bucket_are_powers_of_the_growth(index: int) -> None:
    upper = SMALLEST_LATENCY_SECONDS * BUCKET_GROWTH**index
    lower = upper / BUCKET_GROWTH
    assert bucket_index(upper * (1 - 1e-9)) == index
    assert bucket_index(lower * (1 + 1e-9)) == index
    assert lower < bucket_seconds(index) < upper


@given(latencies, latencies)
def test_a_bucket_stands_for_its_latencies_within_half_a_percent_and_in_order(one: float, other: float) -> None:
    assert abs(bucket_seconds(bucket_index(one)) - one) <= 0.005 * one * (1 + 1e-9)
    assert (bucket_index(one) <= bucket_index(other)) == (one <= other) or bucket_index(one) == bucket_index(other)


def test_the_first_and_the_last_bucket_hold_all_beyond_them() -> None:
    assert [bucket_index(value) for value in (0.0, -1.0, 1e-9, 1e-6)] == [0] * 4
    assert (SMALLEST_LATENCY_SECONDS, BUCKET_GROWTH, BUCKET_COUNT) == (1e-6, 1.01, 2784), (
        "recordings and readers rely on them"
    )
    assert bucket_index(1.005e-6) == 1
    assert bucket_seconds(1) == pytest.approx(1.005e-6)
    assert bucket_seconds(0) == 1e-6
    assert [bucket_index(value) for value in (1e7, 1e300)] == [BUCKET_COUNT - 1] * 2
    assert bucket_index(1e6) < BUCKET_COUNT
    assert bucket_seconds(BUCKET_COUNT - 1) > 1e6


@given(st.lists(latencies, min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_list(values: list[float]) -> None:
    told = values_of(execution.latency_percentiles(histogram_of(values)))
    ordered = sorted(values)
    exact = [ordered[max(1, ceil(quantile * len(ordered))) - 1] for quantile in QUANTILES]
    assert told == [pytest.approx(value, rel=0.005 + 1e-9) for value in exact]
    assert told == sorted(told)


@given(st.lists(latencies, max_size=60), st.lists(latencies, max_size=60))
def test_a_difference_is_what_came_between(earlier: list[float], came: list[float]) -> None:
    between = execution.subtract_histograms(histogram_of(earlier + came), histogram_of(earlier))
    expected = histogram_of(came)
    assert between.bucket_indices == expected.bucket_indices
    assert between.bucket_counts == expected.bucket_counts
    assert between.sum_seconds == pytest.approx(expected.sum_seconds, rel=1e-6, abs=1e-3)


def test_the_rank_is_exact_also_beyond_the_precision_of_a_float() -> None:
    """100 values: the 99th percentile by nearest rank is the 99th value, not the 100th."""
    told = execution.latency_percentiles(LatencyHistogram((10, 20), (99, 1)))
    assert told is not None
    assert (told.p99_seconds, told.p100_seconds) == (bucket_seconds(10), bucket_seconds(20))
    for count in (2**53 + 1, 2**63 - 1):
        assert values_of(execution.latency_percentiles(LatencyHistogram((5,), (count,)))) == [bucket_seconds(5)] * 8


def test_the_median_is_that_of_the_percentiles_and_nothing_has_none() -> None:
    for empty in (LatencyHistogram(), LatencyHistogram((3,), (0,))):
        assert execution.latency_percentiles(empty) is None
        assert execution.median_seconds(empty) is None
    for counts in ((1, 0), (1, 1), (1, 2), (2, 1), (3, 4), (2**53, 2**53 + 1)):
        histogram = LatencyHistogram((10, 20), counts)
        told = execution.latency_percentiles(histogram)
        assert told is not None
        assert execution.median_seconds(histogram) == told.p50_seconds


def test_a_difference_never_has_a_sum_below_zero_and_is_refused_to_what_is_no_past() -> None:
    between = execution.subtract_histograms(LatencyHistogram((7,), (3,), 1.0), LatencyHistogram((7,), (2,), 1.5))
    assert between == LatencyHistogram((7,), (1,), 0.0)
    assert execution.subtract_histograms(LatencyHistogram((7,), (3,), 2.5), LatencyHistogram()).sum_seconds == 2.5
    for later, earlier, cause in (
        (LatencyHistogram((7,), (1,)), LatencyHistogram((7,), (2,)), "latency bucket 7 fell by 1"),
        (LatencyHistogram((7,), (1,)), LatencyHistogram((9,), (2,)), "latency bucket 9 fell by 2"),
        (LatencyHistogram((7, 8), (3,)), LatencyHistogram(), "argument 2 is"),
        (LatencyHistogram((7,), (3,)), LatencyHistogram((7, 8), (3,)), "argument 2 is"),
    ):
        with pytest.raises(ValueError, match=cause):
            execution.subtract_histograms(later, earlier)


def test_a_sum_of_counts_that_no_message_can_hold_is_unknown() -> None:
    assert [sum_known([2**64 - 2, more]) for more in (1, 2, None)] == [2**64 - 1, None, 2**64 - 2]
    assert sum_known([1e19, 1e19]) == 2e19
