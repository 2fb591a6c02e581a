"""Latency histograms: exact counts in logarithmic buckets, and percentiles of any period from them.

Bucket 0 holds everything up to 1 µs, bucket i what lies in (1.01**(i-1), 1.01**i] µs. A percentile is told as the
middle of its bucket, so it is off by at most 0.5 % of its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log

from neurontools.model.execution import LatencyHistogram, LatencyPercentiles

SMALLEST_SECONDS = 1e-6
GROWTH = 1.01
BUCKET_COUNT = 2784  # the last bucket ends above 10^6 seconds
_PER_LOG = 1.0 / log(GROWTH)
_PERCENTS = (0, 1, 25, 50, 75, 99, 100)


def bucket_index(latency_seconds: float) -> int:
    """The bucket that a latency falls into, 0 to BUCKET_COUNT - 1."""
    if latency_seconds <= SMALLEST_SECONDS:
        return 0
    return min(ceil(log(latency_seconds / SMALLEST_SECONDS) * _PER_LOG), BUCKET_COUNT - 1)


def bucket_seconds(index: int) -> float:
    """The latency that stands for a bucket: the middle between its bounds."""
    if index == 0:
        return SMALLEST_SECONDS
    upper = SMALLEST_SECONDS * GROWTH**index
    return (upper + upper / GROWTH) / 2


def difference(later: LatencyHistogram, earlier: LatencyHistogram) -> LatencyHistogram:
    """What came between two states of one histogram; ValueError when `earlier` isn't a past of `later`."""
    counts = dict(zip(later.bucket_indices, later.bucket_counts, strict=True))
    for index, count in zip(earlier.bucket_indices, earlier.bucket_counts, strict=True):
        remaining = counts.get(index, 0) - count
        if remaining < 0:
            raise ValueError(f"latency bucket {index} fell by {-remaining}")
        if remaining:
            counts[index] = remaining
        else:
            del counts[index]
    return LatencyHistogram(tuple(counts), tuple(counts.values()), max(0.0, later.sum_seconds - earlier.sum_seconds))


def median_seconds(histogram: LatencyHistogram) -> float | None:
    """The median by nearest rank, as `percentiles` has it; None when the histogram is empty."""
    total = sum(histogram.bucket_counts)
    if not total:
        return None
    return next(_values_at(histogram, [-(-total // 2)]))


def percentiles(histogram: LatencyHistogram) -> LatencyPercentiles | None:
    """The percentiles by nearest rank; None when the histogram is empty."""
    total = sum(histogram.bucket_counts)
    if not total:
        return None
    # In whole numbers: a float is not exact for large counts.
    ranks = [max(1, -(-percent * total // 100)) for percent in _PERCENTS]
    return LatencyPercentiles(*_values_at(histogram, ranks))


def _values_at(histogram: LatencyHistogram, ranks: list[int]) -> Iterator[float]:
    buckets = zip(histogram.bucket_indices, histogram.bucket_counts, strict=True)
    index, seen = next(buckets)
    for rank in ranks:
        while seen < rank:
            index, count = next(buckets)
            seen += count
        yield bucket_seconds(index)
