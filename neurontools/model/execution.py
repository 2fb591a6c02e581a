"""Counters of executions and errors, and histograms of execution latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log

from neurontools.model.representation import repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class ExecutionCounters:
    """Finished executions of a process by outcome. Each execution increments exactly one field.

    The outcomes are those of neuron-monitor's `execution_summary`.
    """

    completed_total: int = 0
    completed_with_err_total: int = 0
    completed_with_num_err_total: int = 0
    timed_out_total: int = 0
    incorrect_input_total: int = 0
    failed_to_queue_total: int = 0

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class ErrorCounters:
    """Errors of a process by kind. The kinds are those of neuron-monitor's `error_summary`."""

    generic_total: int = 0
    numerical_total: int = 0
    transient_total: int = 0
    model_total: int = 0
    runtime_total: int = 0
    hardware_total: int = 0

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class StatusCounters:
    """Execution outcomes and errors of one core since the driver was loaded. Fields have the driver's names.

    Before driver 2.30, the counters change only when a process ends. None means that the driver lacks the counter.
    """

    success_total: int | None = None
    failure_total: int | None = None
    timeout_total: int | None = None
    exec_bad_input_total: int | None = None
    hw_error_total: int | None = None
    execute_completed_with_error_total: int | None = None
    execute_completed_with_num_error_total: int | None = None
    generic_error_total: int | None = None
    resource_error_total: int | None = None
    resource_nc_error_total: int | None = None
    execute_failed_to_queue_total: int | None = None
    invalid_error_total: int | None = None
    unsupported_neff_version_total: int | None = None
    oob_error_total: int | None = None
    hw_collectives_error_total: int | None = None
    hw_hbm_ue_error_total: int | None = None
    hw_nc_ue_error_total: int | None = None
    hw_dma_abort_error_total: int | None = None
    execute_sw_nq_overflow_total: int | None = None
    execute_sw_semaphore_error_total: int | None = None
    execute_sw_event_error_total: int | None = None
    execute_sw_psum_collision_total: int | None = None
    execute_sw_sequencer_fatal_total: int | None = None
    hw_repairable_hbm_ue_error_total: int | None = None

    __repr__ = repr_of_changed_fields


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles of the latencies in a `LatencyHistogram`, in seconds, rounded to its buckets.

    neuron-monitor reports all of them except p90.
    """

    p0_seconds: float
    p1_seconds: float
    p25_seconds: float
    p50_seconds: float
    p75_seconds: float
    p99_seconds: float
    p100_seconds: float
    p90_seconds: float | None = None  # None: from a daemon of an older version


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Histogram of the execution latencies of a process. `bucket_seconds` converts a bucket index to a latency.

    Lists only non-empty buckets, by ascending index. `subtract_histograms` returns the latencies between two readings.
    """

    bucket_indices: tuple[int, ...] = ()
    bucket_counts: tuple[int, ...] = ()
    sum_seconds: float = 0.0

    __repr__ = repr_of_changed_fields


SMALLEST_LATENCY_SECONDS = 1e-6
BUCKET_GROWTH = 1.01
BUCKET_COUNT = 2784  # the last bucket ends above 10^6 seconds
_PER_LOG = 1.0 / log(BUCKET_GROWTH)
_PERCENTS = (0, 1, 25, 50, 75, 90, 99, 100)


def bucket_index(latency_seconds: float) -> int:
    """Returns the index of the bucket for a latency, 0 to BUCKET_COUNT - 1."""
    if latency_seconds <= SMALLEST_LATENCY_SECONDS:
        return 0
    return min(ceil(log(latency_seconds / SMALLEST_LATENCY_SECONDS) * _PER_LOG), BUCKET_COUNT - 1)


def bucket_seconds(index: int) -> float:
    """Returns the latency that represents a bucket: the middle of its bounds."""
    if index == 0:
        return SMALLEST_LATENCY_SECONDS
    upper = SMALLEST_LATENCY_SECONDS * BUCKET_GROWTH**index
    return (upper + upper / BUCKET_GROWTH) / 2


class LatencyCounts:
    """Collects latencies into buckets and builds their `LatencyHistogram`. Not for several threads at once."""

    __slots__ = ("_counts", "_sum_seconds")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sum_seconds = 0.0

    def add(self, latency_seconds: float, bucket: int | None = None) -> int:
        """Adds a latency and returns the index of its bucket. `bucket` is that index, if the caller knows it."""
        index = bucket_index(latency_seconds) if bucket is None else bucket
        self._counts[index] = self._counts.get(index, 0) + 1
        self._sum_seconds += latency_seconds
        return index

    def histogram(self) -> LatencyHistogram:
        """Returns the histogram of all latencies so far."""
        indices = tuple(sorted(self._counts))
        return LatencyHistogram(indices, tuple(self._counts[index] for index in indices), self._sum_seconds)


def subtract_histograms(later: LatencyHistogram, earlier: LatencyHistogram) -> LatencyHistogram:
    """Returns the histogram of the latencies between two readings. Raises ValueError if a bucket decreased."""
    counts = dict(zip(later.bucket_indices, later.bucket_counts, strict=True))
    for index, count in zip(earlier.bucket_indices, earlier.bucket_counts, strict=True):
        remaining = counts.get(index, 0) - count
        if remaining < 0:
            raise ValueError(f"latency bucket {index} fell by {-remaining}")
        if remaining:
            counts[index] = remaining
        else:
            counts.pop(index, None)  # a report may list a bucket whose count is 0
    return LatencyHistogram(tuple(counts), tuple(counts.values()), max(0.0, later.sum_seconds - earlier.sum_seconds))


def median_seconds(histogram: LatencyHistogram) -> float | None:
    """Returns the median latency by nearest rank; None if the histogram is empty."""
    total = sum(histogram.bucket_counts)
    if not total:
        return None
    return next(_values_at(histogram, [-(-total // 2)]))


def latency_percentiles(histogram: LatencyHistogram) -> LatencyPercentiles | None:
    """Returns the latency percentiles by nearest rank; None if the histogram is empty."""
    total = sum(histogram.bucket_counts)
    if not total:
        return None
    # Integer arithmetic, because floats are inexact for large counts.
    ranks = [max(1, -(-percent * total // 100)) for percent in _PERCENTS]
    values = zip(_PERCENTS, _values_at(histogram, ranks), strict=True)
    return LatencyPercentiles(**{f"p{percent}_seconds": seconds for percent, seconds in values})


def _values_at(histogram: LatencyHistogram, ranks: list[int]) -> Iterator[float]:
    buckets = zip(histogram.bucket_indices, histogram.bucket_counts, strict=True)
    index, cumulative = next(buckets)
    for rank in ranks:
        while cumulative < rank:
            index, count = next(buckets)
            cumulative += count
        yield bucket_seconds(index)
