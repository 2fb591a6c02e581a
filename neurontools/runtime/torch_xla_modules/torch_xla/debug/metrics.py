"""torch_xla.debug.metrics: the counters and timers of the runtime."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.counting.metrics import metrics as _metrics


def counter_names() -> list[str]:
    return list(_metrics.counters)


def counter_value(counter_name: str) -> int | None:
    """Returns the value of a counter; None if it was never incremented."""
    return _metrics.counters.get(counter_name)


def metric_names() -> list[str]:
    return list(_metrics.timers)


def metric_data(metric_name: str) -> tuple[int, float, tuple[Any, ...]] | None:
    """Returns the number of samples, their sum (in ns for times) and an empty tuple; None for an unknown metric."""
    timer = _metrics.timers.get(metric_name)
    if timer is None:
        return None
    return timer.count, timer.total * 1e9 if timer.is_time else timer.total, ()


def metrics_report() -> str:
    return _metrics.report()


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """Returns chosen counters and metrics as text; by default compilations, executions and fallbacks."""
    wanted = set(counter_names or ["CachedCompile", "UncachedCompile", "MarkStep", "ExecuteComputation"])
    wanted |= set(metric_names or ["CompileTime", "ExecuteTime"])
    wanted |= {name for name in _metrics.counters if name.startswith("aten::")}
    blocks = []
    for block in _metrics.report().replace("Counter: ", "\nCounter: ").replace("Metric: ", "\nMetric: ").split("\n\n"):
        name = block.strip().partition("\n")[0].partition(": ")[2]
        if name in wanted:
            blocks.append(block.strip())
    return "\n".join(blocks) + "\n"


def executed_fallback_ops() -> list[str]:
    """Returns the names of the operators that ran on the host outside of a graph."""
    return [name for name in _metrics.counters if name.startswith("aten::")]


def clear_counters() -> None:
    _metrics.counters.clear()


def clear_metrics() -> None:
    _metrics.timers.clear()


def clear_all() -> None:
    _metrics.clear()
