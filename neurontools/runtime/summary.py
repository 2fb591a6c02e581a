"""What a training process did, as a document: for neuron-run, which adds up its workers."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path
from typing import Any

from neurontools.runtime.device import device
from neurontools.runtime.metrics import metrics
from neurontools.runtime.monitoring import Reported
from neurontools.runtime.setup import executor
from neurontools.runtime.steps import steps

_started = time.perf_counter()


def document() -> dict[str, Any]:
    """The summary of this process; quantities carry their unit in their name, None is unknown."""
    cores = device.taken
    execution = metrics.timers.get("ExecuteTime")
    elapsed = None
    if steps.first_seconds is not None and steps.last_seconds is not None:
        elapsed = steps.last_seconds - steps.first_seconds
    rate = (steps.steps_total - 1) / elapsed if elapsed else None
    monitor = executor().monitor
    return {
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", "0") or 0),
        "instance_type": monitor.reporter.instance_type if isinstance(monitor, Reported) else None,
        "training_seconds": elapsed,
        "cores": [core.global_index for core in cores],
        "wall_seconds": time.perf_counter() - _started,
        "steps_total": steps.steps_total,
        "samples_total": steps.samples_total if steps.batches_total else None,
        "steps_per_second": rate,
        "step_p50_seconds": steps.times.quantile(0.5),
        "step_p99_seconds": steps.times.quantile(0.99),
        "compile_seconds": sum(c.statistics.compile_seconds for c in cores),
        "graphs_compiled_total": sum(c.statistics.compilations_total for c in cores),
        "executions_total": sum(c.statistics.executions_total for c in cores),
        "failed_executions_total": sum(c.statistics.failed_executions_total for c in cores),
        "execution_p50_seconds": execution.quantile(0.5) if execution else None,
        "execution_p99_seconds": execution.quantile(0.99) if execution else None,
        "busy_seconds": sum(c.statistics.busy_seconds for c in cores),
        "flop_total": sum(c.statistics.flops_total for c in cores),
        "hbm_peak_bytes": max((c.memory.peak_bytes for c in cores), default=0),
        "to_device_bytes": sum(c.statistics.to_device_bytes for c in cores),
        "from_device_bytes": sum(c.statistics.from_device_bytes for c in cores),
        "collective_seconds": sum(c.statistics.collective_seconds for c in cores),
        "collective_bytes": sum(c.statistics.collective_bytes for c in cores),
        "numerical_errors_total": sum(c.statistics.numerical_errors_total for c in cores),
        "fallbacks_total": sum(n for name, n in metrics.counters.items() if name.startswith("aten::")),
    }


def write_at_exit(directory: Path) -> None:
    """Leaves the summary of this process in a directory when it ends; a full disk loses it and nothing else."""

    def write() -> None:
        if os.getpid() != owner or not device.taken:
            return
        try:
            (directory / f"{os.getpid()}.json").write_text(json.dumps(document()))
        except OSError:
            return

    owner = os.getpid()
    atexit.register(write)
    steps.watcher = _Progress(directory / f"{owner}.progress")


class _Progress:
    """Writes a line of progress at most once a second, from the thread that steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = os.getpid()
        self._next_seconds = 0.0
        self._last: tuple[float, int] | None = None

    def __call__(self, now_seconds: float) -> None:
        if now_seconds < self._next_seconds or os.getpid() != self._owner:
            return
        self._next_seconds = now_seconds + 1.0
        rate = None
        if self._last is not None:
            then_seconds, then_steps = self._last
            rate = (steps.steps_total - then_steps) / (now_seconds - then_seconds)
        self._last = now_seconds, steps.steps_total
        state = {
            "steps_total": steps.steps_total,
            "steps_per_second": rate,
            "graphs_total": sum(core.statistics.compilations_total for core in device.taken),
            "hbm_bytes": sum(core.memory.total_bytes for core in device.taken),
        }
        try:
            self._path.write_text(json.dumps(state))
        except OSError:
            return
