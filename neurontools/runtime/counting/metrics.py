"""Counters and timers under the names of torch_xla's metrics, and counts by line of the script."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from neurontools.model.latency import bucket_index, bucket_seconds


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


class RuntimeMetrics:
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
        call_sites.note(f"fallback {name}")

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


metrics = RuntimeMetrics()


_MAX_CALL_SITES = 256
_MOST_FRAMES = 200
# Frames of these are not the script's: torch and other packages, the standard library, and what runs a script.
_OTHERS = tuple(
    {
        f"{Path(path)}{os.sep}"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    | {f"{Path(__file__).parents[2]}{os.sep}", "<frozen "}
)

CallSite = tuple[str, str, int]
"""What happened, the file as the interpreter knows it, and the line."""


class CallSiteCounter:
    """Counts by place, of at most 256 places; what happens at others is counted at none. Any thread may note.

    `steps` says in how many steps of training it happened at a place: an evaluation has one, however long it is.
    `step` is the one that goes on, which who counts steps sets.

    Looking for the line takes a microsecond or two, so this is for what happens a few times a step at the most.
    """

    def __init__(self) -> None:
        self.counts: Counter[CallSite] = Counter()
        self.steps: Counter[CallSite] = Counter()
        self.step = 0
        self._latest: dict[CallSite, int] = {}

    def note(self, what: str) -> None:
        """Something happened for the script's line that is being executed; nothing where no frame is the script's."""
        frame = _script_frame(sys._getframe(1))  # noqa: SLF001  (the documented way to look at who calls)
        if frame is None:
            return
        place = (what, frame.f_code.co_filename, frame.f_lineno)
        if place in self.counts or len(self.counts) < _MAX_CALL_SITES:
            self.counts[place] += 1
            if self._latest.get(place) != self.step:
                self._latest[place] = self.step
                self.steps[place] += 1


def _script_frame(frame: FrameType | None) -> FrameType | None:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS) and not name.startswith("<"):
            return frame
        frame = frame.f_back
    return None


call_sites = CallSiteCounter()
