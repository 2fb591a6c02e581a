from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import LatencyHistogram, LatencyPercentiles, latency
from neurontools.model.latency import BUCKET_COUNT, GROWTH, SMALLEST_SECONDS, bucket_index, bucket_seconds

QUANTILES = [Fraction(percent, 100) for percent in (0, 1, 25, 50, 75, 99, 100)]
latencies = st.floats(1e-6, 1e6)


def histogram_of(values: list[float]) -> LatencyHistogram:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_index(value)] = counts.get(bucket_index(value), 0) + 1
    ordered = dict(sorted(counts.items()))
    return LatencyHistogram(tuple(ordered), tuple(ordered.values()), sum(values))


def values_of(percentiles: LatencyPercentiles | None) -> list[float]:
    assert percentiles is not None
    return [getattr(percentiles, name) for name in percentiles.__slots__]


@given(latencies)
def test_a_bucket_stands_for_its_latencies_within_half_a_percent(value: float) -> None:
    told = bucket_seconds(bucket_index(value))
    assert abs(told - value) <= 0.005 * value * (1 + 1e-9)


@given(st.integers(1, BUCKET_COUNT - 1))
def test_the_bounds_of_a_bucket_are_powers_of_the_growth(index: int) -> None:
    upper = SMALLEST_SECONDS * GROWTH**index
    lower = upper / GROWTH
    assert bucket_index(upper * (1 - 1e-9)) == index
    assert bucket_index(lower * (1 + 1e-9)) == index
    assert lower < bucket_seconds(index) < upper


@given(latencies, latencies)
def test_a_longer_latency_never_falls_into_an_earlier_bucket(one: float, other: float) -> None:
    assert (bucket_index(one) <= bucket_index(other)) == (one <= other) or bucket_index(one) == bucket_index(other)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9, 1e-6])
def test_bucket_zero_holds_all_up_to_a_microsecond(value: float) -> None:
    assert bucket_index(value) == 0
    assert bucket_seconds(0) == 1e-6


@pytest.mark.parametrize("value", [1e7, 1e300])
def test_the_last_bucket_holds_all_that_is_longer(value: float) -> None:
    assert bucket_index(value) == BUCKET_COUNT - 1
    assert bucket_index(1e6) < BUCKET_COUNT
    assert bucket_seconds(BUCKET_COUNT - 1) > 1e6


@given(st.lists(latencies, min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_list(values: list[float]) -> None:
    told = values_of(latency.percentiles(histogram_of(values)))
    ordered = sorted(values)
    exact = [ordered[max(1, ceil(quantile * len(ordered))) - 1] for quantile in QUANTILES]
    assert told == [pytest.approx(value, rel=0.005 + 1e-9) for value in exact]
    assert told == sorted(told)


@given(st.lists(latencies, max_size=60), st.lists(latencies, max_size=60))
def test_a_difference_is_what_came_between(earlier: list[float], came: list[float]) -> None:
    between = latency.difference(histogram_of(earlier + came), histogram_of(earlier))
    expected = histogram_of(came)
    assert between.bucket_indices == expected.bucket_indices
    assert between.bucket_counts == expected.bucket_counts
    assert between.sum_seconds == pytest.approx(expected.sum_seconds, rel=1e-6, abs=1e-3)


def test_nothing_has_no_percentiles() -> None:
    assert latency.percentiles(LatencyHistogram()) is None
    assert latency.percentiles(LatencyHistogram((3,), (0,))) is None


def test_a_difference_to_something_that_is_no_past_is_refused() -> None:
    with pytest.raises(ValueError, match="latency bucket 7 fell by 1"):
        latency.difference(LatencyHistogram((7,), (1,)), LatencyHistogram((7,), (2,)))
    with pytest.raises(ValueError, match="latency bucket 9 fell by 2"):
        latency.difference(LatencyHistogram((7,), (1,)), LatencyHistogram((9,), (2,)))


@pytest.mark.parametrize("count", [2**53 + 1, 2**63 - 1])
def test_counts_beyond_the_precision_of_a_float_have_percentiles(count: int) -> None:
    assert values_of(latency.percentiles(LatencyHistogram((5,), (count,)))) == [bucket_seconds(5)] * 7


def test_the_rank_is_exact() -> None:
    """100 values: the 99th percentile by nearest rank is the 99th value, not the 100th."""
    told = latency.percentiles(LatencyHistogram((10, 20), (99, 1)))
    assert told is not None
    assert (told.p99_seconds, told.p100_seconds) == (bucket_seconds(10), bucket_seconds(20))


def test_the_median_is_that_of_the_percentiles() -> None:
    assert latency.median_seconds(LatencyHistogram()) is None
    assert latency.median_seconds(LatencyHistogram((3,), (0,))) is None
    for counts in ((1, 0), (1, 1), (1, 2), (2, 1), (3, 4), (2**53, 2**53 + 1)):
        histogram = LatencyHistogram((10, 20), counts)
        told = latency.percentiles(histogram)
        assert told is not None
        assert latency.median_seconds(histogram) == told.p50_seconds


def test_a_difference_never_has_a_sum_below_zero() -> None:
    between = latency.difference(LatencyHistogram((7,), (3,), 1.0), LatencyHistogram((7,), (2,), 1.5))
    assert between == LatencyHistogram((7,), (1,), 0.0)
    assert latency.difference(LatencyHistogram((7,), (3,), 2.5), LatencyHistogram()).sum_seconds == 2.5
    with pytest.raises(ValueError):
        latency.difference(LatencyHistogram((7, 8), (3,)), LatencyHistogram())
    with pytest.raises(ValueError):
        latency.difference(LatencyHistogram((7,), (3,)), LatencyHistogram((7, 8), (3,)))


def test_the_numbers_that_recordings_and_readers_rely_on() -> None:
    assert (SMALLEST_SECONDS, GROWTH, BUCKET_COUNT) == (1e-6, 1.01, 2784)
    assert bucket_seconds(1) == pytest.approx(1.005e-6)
    assert bucket_index(1.005e-6) == 1
