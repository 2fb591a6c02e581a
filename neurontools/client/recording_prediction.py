"""Predicts the next snapshot, so that a recording stores only the residuals of its numbers.

Writer and reader keep the last numbers, in quantization steps. The writer predicts from the rounded values that the
reader will have, so rounding errors do not add up. A rate is predicted from the growth of its counters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from neurontools.client.recording_codec import Buckets, Number, Path, Plan, histogram_paths, paths
from neurontools.model import LatencyHistogram, LatencyPercentiles, execution
from neurontools.rpc import neuron_pb2

_LOG_STEPS = 2048  # quantization steps per doubling of a value: one step is 0.034 %
_GROWTH_BITS = 12  # the growth of a FLOP total is stored with this many significant bits
_PERCENTILES = ("p0_seconds", "p1_seconds", "p25_seconds", "p50_seconds", "p75_seconds", "p99_seconds", "p100_seconds")
_EXECUTIONS = (
    "completed_total",
    "completed_with_err_total",
    "completed_with_num_err_total",
    "timed_out_total",
    "incorrect_input_total",
    "failed_to_queue_total",
)

_TRAFFIC = (
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "read_bytes_per_second",
    "written_bytes_per_second",
)

_LOG, _FLOAT, _FLOP = "log", "float", "flop"


def step_of(name: str) -> float | str | None:
    """Returns the quantization for a field name: a step size, `_LOG` or `_FLOP`, or None for an exact integer."""
    if name in ("flops_per_second", *_PERCENTILES, *_TRAFFIC):
        return _LOG
    if name == "flop_total":
        return _FLOP
    if name.endswith("_ratio"):
        return 1e-4
    if name in ("busy_seconds_total", "measured_at_seconds", "taken_at_seconds"):
        return 1e-4
    if name.endswith("_per_second"):
        return 1e-2
    if name.endswith(("_seconds", "_seconds_total")):
        return 1e-3
    return None


@dataclass(frozen=True, slots=True)
class _Slot:
    """How one number of a snapshot is quantized and predicted, with the positions of the numbers used to predict it."""

    name: str
    step: float | str | None
    rule: str  # how the number is predicted: same, linear, rate, percentile or sum
    counters: tuple[int, ...] = ()
    clock: int = -1
    histogram: int = -1
    quantile: int = -1


class Predictor:
    """The prediction state for snapshots of one shape (see recording_codec), the same for writer and reader."""

    def __init__(
        self, snapshot: neuron_pb2.Snapshot, plan: Plan, numbers: list[Number], histograms: list[Buckets]
    ) -> None:
        found = paths(snapshot, plan)
        histogram_order = histogram_paths(snapshot, plan)
        self.slots = _slots(found, histogram_order)
        self.order = sorted(range(len(self.slots)), key=_sort_key(found, self.slots))
        self.histogram_order = sorted(range(len(histogram_order)), key=lambda index: histogram_order[index])
        # Numbers of the last snapshot as the reader has them, and their last growth, both in quantization steps.
        self.before: list[int | None] = []
        self.growth: list[int] = [0] * len(self.slots)
        for slot, value in zip(self.slots, numbers, strict=True):
            self.before.append(to_steps(slot.step, value))
        self.histograms = histograms
        self.histogram_growth: list[Buckets] = [{} for _ in histograms]
        # by index of the histogram: latency percentiles of its last growth, computed on first use
        self._percentiles: dict[int, LatencyPercentiles | None] = {}

    def encode(self, numbers: list[Number], histograms: list[Buckets]) -> list[int]:
        """Returns the residuals of the next snapshot, which becomes the state for the following prediction."""
        out: list[int] = []
        self._encode_histograms(histograms, out)
        now: list[int | None] = [None] * len(self.slots)
        for index in self.order:
            slot = self.slots[index]
            before = self.before[index]
            value = to_steps(slot.step, numbers[index])
            expected = before if slot.rule == "same" else self._expected(index, slot, before, now)
            if value is None or expected is None:
                if value is not None:
                    out.append(_shifted(value))
                else:
                    out.append(0 if expected is None else _GONE)
            else:
                residual = value - expected
                if slot.step is _FLOP:
                    residual, value = _rounded(residual, expected)
                out.append(residual)
            now[index] = value
        self._advance(now)
        return out

    def decode(self, values: list[int]) -> tuple[list[Number], list[Buckets]]:
        """Returns the numbers and histograms of the next snapshot, restored from its residuals.

        Raises ValueError if the residuals do not fit the shape of the snapshot.
        """
        position = self._decode_histograms(values)
        if len(values) - position != len(self.order):
            raise ValueError("a difference doesn't fit the snapshot before")
        now: list[int | None] = [None] * len(self.slots)
        for index in self.order:
            residual = values[position]
            position += 1
            slot = self.slots[index]
            before = self.before[index]
            expected = before if slot.rule == "same" else self._expected(index, slot, before, now)
            if residual == _GONE:
                now[index] = None
            elif expected is None:
                now[index] = None if residual == 0 else _unshifted(residual)
            else:
                now[index] = expected + residual
        self._advance(now)
        numbers = [from_steps(slot.step, value) for slot, value in zip(self.slots, now, strict=True)]
        return numbers, [dict(buckets) for buckets in self.histograms]

    def _advance(self, now: list[int | None]) -> None:
        for index, value in enumerate(now):
            before = self.before[index]
            self.growth[index] = value - before if value is not None and before is not None else 0
        self.before = now
        self._percentiles.clear()

    def _encode_histograms(self, histograms: list[Buckets], out: list[int]) -> None:
        for index in self.histogram_order:
            old, new = self.histograms[index], histograms[index]
            changed = sorted(bucket for bucket in old.keys() | new.keys() if old.get(bucket, 0) != new.get(bucket, 0))
            out.append(len(changed))
            last = 0
            for bucket in changed:
                # The + 1 avoids a 0 for bucket 0, because `write_integers` codes a 0 as a run of zeros.
                out.append(bucket - last + 1)
                last = bucket
            out.extend(new.get(bucket, 0) - old.get(bucket, 0) for bucket in changed)
            self.histogram_growth[index] = {bucket: new.get(bucket, 0) - old.get(bucket, 0) for bucket in changed}
        self.histograms = histograms

    def _decode_histograms(self, values: list[int]) -> int:
        position = 0
        histograms = list(self.histograms)
        for index in self.histogram_order:
            if position >= len(values):
                raise ValueError("a difference is too short")
            count = values[position]
            position += 1
            end = position + 2 * count
            if not 0 <= count <= execution.BUCKET_COUNT or end > len(values):
                raise ValueError("a histogram is wrong")
            buckets = dict(histograms[index])
            growth: Buckets = {}
            bucket = 0
            for offset in range(count):
                bucket += values[position + offset] - 1
                growth[bucket] = values[position + count + offset]
                left = buckets.get(bucket, 0) + growth[bucket]
                if not 0 <= bucket < execution.BUCKET_COUNT or left < 0:
                    raise ValueError("a histogram is wrong")
                if left:
                    buckets[bucket] = left
                else:
                    buckets.pop(bucket, None)
            histograms[index] = buckets
            self.histogram_growth[index] = growth
            position = end
        self.histograms = histograms
        return position

    def _expected(self, index: int, slot: _Slot, before: int | None, now: list[int | None]) -> int | None:
        rule = slot.rule
        if rule == "linear":
            return None if before is None else before + self.growth[index]
        if rule == "sum":
            if before is None:
                return None
            seconds = sum(
                execution.bucket_seconds(bucket) * count
                for bucket, count in self.histogram_growth[slot.histogram].items()
            )
            return before + round(seconds / float(slot.step or 1))
        if rule == "percentile":
            return self._percentile(slot, before)
        return self._rate(slot, before, now)

    def _rate(self, slot: _Slot, before: int | None, now: list[int | None]) -> int | None:
        clock_before, clock = self.before[slot.clock], now[slot.clock]
        if clock is None or clock_before is None or clock <= clock_before:
            return before
        growth = 0.0
        for counter in slot.counters:
            then, current = self.before[counter], now[counter]
            if then is None or current is None or current < then:
                return before
            step = self.slots[counter].step
            growth += (current - then) * (step if isinstance(step, float) else 1.0)
        seconds = (clock - clock_before) * float(self.slots[slot.clock].step or 1)
        rate = growth / seconds
        if slot.name == "utilization_ratio":
            rate = min(1.0, rate)
        return to_steps(slot.step, rate)

    def _percentile(self, slot: _Slot, before: int | None) -> int | None:
        if slot.histogram not in self._percentiles:
            growth = self.histogram_growth[slot.histogram]
            histogram = LatencyHistogram(tuple(growth), tuple(growth.values()))
            fell = any(count < 0 for count in growth.values())
            self._percentiles[slot.histogram] = None if fell else execution.latency_percentiles(histogram)
        found = self._percentiles[slot.histogram]
        return before if found is None else to_steps(slot.step, getattr(found, slot.name))


_GONE = -(2**70)  # residual that marks a number which is now absent; no real residual is this low


def _shifted(value: int) -> int:
    """Encodes a value that has no prediction. Never returns 0, because 0 encodes an absent value."""
    return value + 1 if value >= 0 else value


def _unshifted(residual: int) -> int:
    return residual - 1 if residual > 0 else residual


def _rounded(residual: int, expected: int) -> tuple[int, int]:
    """Rounds a residual to its first `_GROWTH_BITS` bits. Returns it and the value that it restores."""
    spare = max(0, abs(residual).bit_length() - _GROWTH_BITS)
    half = 1 << spare >> 1
    kept = (abs(residual) + half >> spare << spare) * (1 if residual >= 0 else -1)
    return kept, expected + kept


def to_steps(step: float | str | None, value: Number) -> int | None:
    """Converts a number to quantization steps; None, which means absent, stays None."""
    if value is None:
        return None
    if step is None or step is _FLOP:
        return int(value)
    if step is _LOG:
        return 0 if value <= 0 or not math.isfinite(value) else round(math.log2(value) * _LOG_STEPS) + 2**17
    return round(value / float(step)) if math.isfinite(value) else 0


def from_steps(step: float | str | None, value: int | None) -> Number:
    """Converts quantization steps back to a number; the inverse of `to_steps`."""
    if value is None:
        return None
    if step is None or step is _FLOP:
        return value
    if step is _LOG:
        return 2.0 ** min(1000.0, (value - 2**17) / _LOG_STEPS) if value > 0 else 0.0
    return round(value * float(step), 4)


def _slots(found: list[Path], histogram_order: list[Path]) -> list[_Slot]:
    position = {path: index for index, path in enumerate(found)}
    histograms = {path: index for index, path in enumerate(histogram_order)}
    taken = position[(("taken_at_seconds",), ())]

    def slot(names: tuple[str, ...], at: tuple[int, ...]) -> _Slot:
        name, parent = names[-1], names[:-1]
        step = step_of(name)

        def sibling(*way: str) -> int:
            return position[((*parent, *way), at)]

        makers: dict[str, Callable[[], _Slot]] = {
            "utilization_ratio": lambda: _Slot(
                name, step, "rate", (sibling("busy_seconds_total"),), sibling("measured_at_seconds")
            ),
            "flops_per_second": lambda: _Slot(
                name, step, "rate", (sibling("flop_total"),), sibling("measured_at_seconds")
            ),
            "vcpu_user_ratio": lambda: _Slot(name, step, "rate", (sibling("cpu_user_seconds_total"),), taken),
            "vcpu_system_ratio": lambda: _Slot(name, step, "rate", (sibling("cpu_system_seconds_total"),), taken),
            "executions_per_second": lambda: _Slot(
                name,
                step,
                "rate",
                tuple(sibling("executions", counter) for counter in _EXECUTIONS),
                sibling("measured_at_seconds"),
            ),
            "sum_seconds": lambda: _Slot(name, step, "sum", histogram=histograms[(parent, at)]),
        }
        if name in makers:
            # Some messages have a field of this name, but not the counters that predict it: use the default rule.
            with contextlib.suppress(KeyError):
                return makers[name]()
        if name in _PERCENTILES and parent:
            kind = (*parent[:-1], f"{parent[-1]}_histogram")
            if (kind, at) in histograms:
                return _Slot(
                    name, step, "percentile", histogram=histograms[(kind, at)], quantile=_PERCENTILES.index(name)
                )
        is_clock = name in ("sequence", "taken_at_unix_seconds", "taken_at_seconds", "measured_at_seconds")
        return _Slot(name, step, "linear" if is_clock else "same")

    return [slot(names, at) for names, at in found]


def _sort_key(found: list[Path], slots: list[_Slot]) -> Callable[[int], tuple[object, ...]]:
    """Returns a sort key that puts rates after their counters, and numbers of one field together to compress well."""
    late = {"rate": 1}
    return lambda index: (late.get(slots[index].rule, 0), found[index][0], found[index][1])
