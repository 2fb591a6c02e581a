"""torch_xla.debug.metrics: the counters and timers of the runtime."""

from __future__ import annotations

from collections import Counter
from typing import Any

from neurontools.runtime.capture.replay import replayer as _replayer
from neurontools.runtime.capture.trace import operator_counts as _operator_counts
from neurontools.runtime.counting.metrics import metrics as _metrics
from neurontools.runtime.tensors.buffers import buffers as _buffers
from neurontools.runtime.tensors.device import device as _device

_cleared: Counter[str] = Counter()  # operators that were pending at the latest clear_counters


def _counters() -> Counter[str]:
    """Returns all counters above 0, including the operators that are recorded but not executed yet."""
    with _buffers.lock:
        return Counter(_metrics.counters) + _metrics.operator_counters() + _pending_operators() - _cleared


def _pending_operators() -> Counter[str]:
    return sum((_operator_counts(_replayer.calls_so_far(core)) for core in _device.acquired_cores), Counter())


def counter_names() -> list[str]:
    return list(_counters())


def counter_value(counter_name: str) -> int | None:
    """Returns the value of a counter; None if it was never incremented."""
    return _counters().get(counter_name)


def metric_names() -> list[str]:
    return list(_metrics.timers)


def metric_data(metric_name: str) -> tuple[int, float, tuple[Any, ...]] | None:
    """Returns the number of samples, their sum (in ns for times) and an empty tuple; None for an unknown metric."""
    timer = _metrics.timers.get(metric_name)
    if timer is None:
        return None
    return timer.count, timer.total * 1e9 if timer.is_time else timer.total, ()


def metrics_report() -> str:
    return _metrics.report(_counters())


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """Returns chosen counters and metrics as text; by default compilations, executions, transfers and fallbacks."""
    wanted = set(counter_names or ["CachedCompile", "UncachedCompile", "MarkStep", "ExecuteComputation"])
    wanted |= set(metric_names or ["CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime"])
    wanted |= {name for name in _metrics.counters if name.startswith("aten::")}
    blocks = []
    for block in metrics_report().replace("Counter: ", "\nCounter: ").replace("Metric: ", "\nMetric: ").split("\n\n"):
        name = block.strip().partition("\n")[0].partition(": ")[2]
        if name in wanted:
            blocks.append(block.strip())
    return "\n".join(blocks) + "\n"


def executed_fallback_ops() -> list[str]:
    """Returns the names of the operators that ran on the host outside of a graph."""
    return [name for name in _metrics.counters if name.startswith("aten::")]


def clear_counters() -> None:
    with _buffers.lock:
        _metrics.counters.clear()
        _metrics.operator_counters().clear()
        _cleared.clear()
        _cleared.update(_pending_operators())


def clear_metrics() -> None:
    _metrics.timers.clear()


def clear_all() -> None:
    clear_counters()
    clear_metrics()
