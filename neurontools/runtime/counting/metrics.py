"""Counters and timers with the names of torch_xla's metrics, and event counts by line of the script."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from types import FrameType

from neurontools.model.execution import bucket_index, bucket_seconds
from neurontools.profile.definitions import SourceLine, caller_package, loop_package
from neurontools.runtime.profiling.script_files import is_outside_script


@dataclass(slots=True)
class Timer:
    """Statistics of one metric's samples. Samples are seconds if `is_time`, else bytes or plain numbers."""

    name: str
    is_time: bool
    count: int = 0
    total: float = 0.0
    largest: float = 0.0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, value: float) -> None:
        self.largest = max(self.largest, value)
        self.count += 1
        self.total += value
        if self.is_time:
            self.buckets[bucket_index(value)] += 1

    def quantile(self, ratio: float) -> float | None:
        """Returns a quantile of samples in seconds, accurate to 0.5 %. Returns None if there are no samples."""
        rank = max(1, round(ratio * self.count))
        cumulative = 0
        for index in sorted(self.buckets):
            cumulative += self.buckets[index]
            if cumulative >= rank:
                return bucket_seconds(index)
        return None


TENSORS_CREATED, TRACING = "CreateXlaTensor", "LazyTracing"
_MOST_REPLAYED = 256  # traces whose replays are not added to the operator counts yet


@dataclass(eq=False, slots=True)
class TracedOperators:
    """The counters of the operators in one trace, such as `xla::add`, and the replays that are not added up yet."""

    counts: Mapping[str, int]
    replays: int = 0


class RuntimeMetrics:
    """All counters and metrics of this process. Callers hold the runtime's lock.

    `counters` lacks the counters of operators in graphs, which `operator_counters` returns.
    """

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.timers: dict[str, Timer] = {}
        self._operator_counters: Counter[str] = Counter()
        self._replayed: list[TracedOperators] = []

    def increment(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def add_duration(self, name: str, seconds: float) -> None:
        self.add_sample(name, seconds, is_time=True)

    def add_sample(self, name: str, value: float, *, is_time: bool = False) -> None:
        """Adds a sample to a metric. Samples are seconds if `is_time`, else bytes or plain numbers."""
        timer = self.timers.get(name)
        if timer is None:
            timer = self.timers[name] = Timer(name, is_time)
        timer.add(value)

    def add_tracing(self, seconds: float) -> None:
        """Adds the time of a recorded call, without percentiles: they would cost a tenth of the call's own time."""
        timer = self.timers.get(TRACING)
        if timer is None:
            timer = self.timers[TRACING] = Timer(TRACING, is_time=True)
        timer.count += 1
        timer.total += seconds

    def count_operators(self, counts: Mapping[str, int]) -> None:
        self._operator_counters.update(counts)

    def count_replay(self, operators: TracedOperators) -> None:
        """Counts the operators of a replayed trace. Adds them up later, because a step may replay hundreds."""
        if not operators.replays:
            self._replayed.append(operators)
        operators.replays += 1
        if len(self._replayed) > _MOST_REPLAYED:
            self.operator_counters()

    def count_tensor(self) -> None:
        """Counts a device tensor that is no result of an operator in a graph."""
        self._operator_counters[TENSORS_CREATED] += 1

    def operator_counters(self) -> Counter[str]:
        """Returns the counters of the operators in all graphs that were executed or replayed."""
        for operators in self._replayed:
            for name, count in operators.counts.items():
                self._operator_counters[name] += count * operators.replays
            operators.replays = 0
        self._replayed.clear()
        return self._operator_counters

    def count_fallback(self, name: str) -> None:
        """Counts a fallback: an operator, such as `aten::nonzero`, that ran on the host and outside of graphs."""
        self.increment(name)
        call_sites.count_call(f"fallback {name}")

    def report(self, counters: Mapping[str, int]) -> str:
        """Returns the metrics and these counters as text, in the format of torch_xla.debug.metrics.metrics_report."""
        lines: list[str] = []
        for name in sorted(self.timers):
            timer = self.timers[name]
            lines.append(f"Metric: {name}")
            lines.append(f"  TotalSamples: {timer.count}")
            lines.append(f"  Accumulator: {_value(timer.total, timer.is_time)}")
            if timer.buckets:
                quantiles = ((r, timer.quantile(r)) for r in (0.01, 0.05, 0.5, 0.9, 0.95, 0.99))
                shown = "; ".join(f"{r * 100:g}%={_value(q, True)}" for r, q in quantiles if q is not None)
                lines.append(f"  Percentiles: {shown}")
            elif not timer.is_time:
                lines.append(f"  Largest: {_value(timer.largest, False)}")
        for name in sorted(counters):
            lines += [f"Counter: {name}", f"  Value: {counters[name]}"]
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
CallSite = tuple[str, str, int]
"""(cause of the event, file name in the code object, line number)"""

LIBRARY_PREFIX = "library "
"""The beginning of a cause that a package has, not the script itself."""

LATE_GRAPH = "graph"
"""The cause of a graph that is new after the warm-up."""

_MOST_LATE_STEPS = 256  # steps with a new graph that are kept for each line


class CallSiteCounter:
    """Counts events, such as fallbacks, by the line of the script that causes them. Any thread may count.

    `counts` has at most 256 call sites. Events at further call sites are not counted. For each call site, `steps` has
    the number of training steps with an event there, and `seconds` the time of events that have a duration. `step` is
    the number of the current training step. For the lines that make new graphs after the warm-up, `late_steps` has the
    numbers of the latest such steps.

    Finding the line takes one to two microseconds, so count only events that happen a few times per step.
    """

    def __init__(self) -> None:
        self.counts: Counter[CallSite] = Counter()
        self.steps: Counter[CallSite] = Counter()
        self.seconds: dict[CallSite, float] = {}
        self.step = 0
        self._closure_threads: set[int] = set()
        self.late_steps: dict[CallSite, deque[int]] = {}
        self._latest: dict[CallSite, int] = {}

    def is_in_closure(self) -> bool:
        """Returns whether this thread runs a step closure, whose reads are not the fault of the script."""
        return bool(self._closure_threads) and get_ident() in self._closure_threads

    @contextmanager
    def closure(self) -> Iterator[None]:
        """Marks this thread as running step closures."""
        self._closure_threads.add(get_ident())
        try:
            yield
        finally:
            self._closure_threads.discard(get_ident())

    def count_call(
        self, cause: str, lines: Sequence[SourceLine] | None = None, *, names_package: bool = False
    ) -> CallSite | None:
        """Counts an event for the script's line on the call stack, or for that in `lines`, innermost first.

        Returns the call site. Does nothing and returns None if there is no such line. With `names_package`, an event
        that a package that runs the training loop causes has a cause of its own, such as "library read by
        transformers".
        """
        own = next((at for at, line in enumerate(lines or ()) if not line.is_package), None)
        if lines and own is not None:
            package = caller_package(lines)
            file, number = lines[own].file, lines[own].line
        else:
            frame, package = _script_frame(sys._getframe(1))  # noqa: SLF001  (documented; cheaper than `inspect`)
            if frame is None:
                return None
            file, number = frame.f_code.co_filename, frame.f_lineno
        full_cause = cause if package is None or not names_package else f"{LIBRARY_PREFIX}{cause} by {package}"
        call_site = (full_cause, file, number)
        if call_site in self.counts or len(self.counts) < _MAX_CALL_SITES:
            self.counts[call_site] += 1
            if self._latest.get(call_site) != self.step:
                self._latest[call_site] = self.step
                self.steps[call_site] += 1
                if cause == LATE_GRAPH:
                    self.late_steps.setdefault(call_site, deque(maxlen=_MOST_LATE_STEPS)).append(self.step)
        return call_site

    def add_seconds(self, call_site: CallSite | None, seconds: float) -> None:
        """Adds the duration of an event to the call site that `count_call` returned for it."""
        if call_site is not None and call_site in self.counts:
            self.seconds[call_site] = self.seconds.get(call_site, 0.0) + seconds


def _script_frame(frame: FrameType | None) -> tuple[FrameType | None, str | None]:
    """Returns the innermost frame of the script, and the package inside of it that runs the training loop, if any."""
    package = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None, package
        name = frame.f_code.co_filename
        is_outside = _outside.get(name)
        if is_outside is None:
            is_outside = _outside[name] = is_outside_script(name)
        if not is_outside:
            return frame, package
        package = package or loop_package(name)
        frame = frame.f_back
    return None, package


_outside: dict[str, bool] = {}  # whether a file is outside of the script


call_sites = CallSiteCounter()
