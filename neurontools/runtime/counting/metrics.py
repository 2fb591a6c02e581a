"""Counters and timers of the runtime, under the names of torch_xla's metrics."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.latency import bucket_index, bucket_seconds
from neurontools.runtime.counting.places import places


@dataclass(slots=True)
class Timer:
    """Samples of one metric; `unit_seconds` tells times from other quantities."""

    name: str
    is_time: bool
    count: int = 0
    total: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0
    buckets: dict[int, int] | None = None

    def add(self, value: float) -> None:
        """Adds one sample: seconds, bytes or a plain number."""
        if not self.count or value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        self.count += 1
        self.total += value
        if self.is_time:
            if self.buckets is None:
                self.buckets = {}
            index = bucket_index(value)
            self.buckets[index] = self.buckets.get(index, 0) + 1

    def quantile(self, ratio: float) -> float | None:
        """The sample below which this part of the samples lies, within 0.5 %; None without samples or for no time."""
        if not self.buckets:
            return None
        rank = max(1, round(ratio * self.count))
        seen = 0
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if seen >= rank:
                return bucket_seconds(index)
        return None


class Metrics:
    """All counters and metrics of the process; changed under the runtime's lock."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.timers: dict[str, Timer] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def time(self, name: str, seconds: float) -> None:
        """Adds a sample to a metric of times."""
        timer = self.timers.get(name)
        if timer is None:
            timer = self.timers[name] = Timer(name, is_time=True)
        timer.add(seconds)

    def sample(self, name: str, value: float) -> None:
        """Adds a sample to a metric of bytes or sizes."""
        timer = self.timers.get(name)
        if timer is None:
            timer = self.timers[name] = Timer(name, is_time=False)
        timer.add(value)

    def fallback(self, name: str) -> None:
        """Counts an operator that ran on the host outside of a graph; shown as torch_xla shows it, `aten::nonzero`."""
        self.count(name)
        places.note(f"fallback {name}")

    def clear(self) -> None:
        """Forgets everything."""
        self.counters.clear()
        self.timers.clear()

    def report(self) -> str:
        """Everything as text, in the manner of torch_xla.debug.metrics.metrics_report."""
        lines: list[str] = []
        for name in sorted(self.timers):
            timer = self.timers[name]
            lines.append(f"Metric: {name}")
            lines.append(f"  TotalSamples: {timer.count}")
            lines.append(f"  Accumulator: {_value(timer.total, timer.is_time)}")
            if timer.is_time:
                quantiles = ((r, timer.quantile(r)) for r in (0.01, 0.05, 0.5, 0.9, 0.95, 0.99))
                shown = "; ".join(f"{r * 100:g}%={_value(q, True)}" for r, q in quantiles if q is not None)
                lines.append(f"  Percentiles: {shown}")
            else:
                lines.append(f"  Largest: {_value(timer.largest, False)}")
        for name in sorted(self.counters):
            lines += [f"Counter: {name}", f"  Value: {self.counters[name]}"]
        return "\n".join(lines) + "\n"


def _value(value: float, is_time: bool) -> str:
    if not is_time:
        return f"{value:.0f}"
    if value >= 1:
        return f"{int(value):d}s{(value % 1) * 1000:03.0f}ms"
    if value >= 1e-3:
        return f"{value * 1e3:.3f}ms"
    return f"{value * 1e6:.3f}us"


metrics = Metrics()
