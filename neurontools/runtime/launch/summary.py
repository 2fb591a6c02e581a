"""What a training process did, as a document: for neuron-run, which adds up its workers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.counting.places import places
from neurontools.runtime.counting.saves import saves
from neurontools.runtime.counting.step_clock import step_clock
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.execution.usual_steps import usual_steps
from neurontools.runtime.launch.hbm_growth import hbm_growth
from neurontools.runtime.launch.optimizer_memory import optimizer_memory
from neurontools.runtime.launch.setup import executor
from neurontools.runtime.launch.summary_files import SummaryFile
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device
from neurontools.runtime.tensors.monitoring import Reported

_MOST_PLACES = 64
_DEPRECATED = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
_started = time.perf_counter()


def document() -> dict[str, Any]:
    """The summary of this process; quantities carry their unit in their name, None is unknown."""
    cores = device.taken
    execution = metrics.timers.get("ExecuteTime")
    collectives = metrics.timers.get("CollectiveTime")
    elapsed = None
    if steps.first_seconds is not None and steps.last_seconds is not None:
        elapsed = steps.last_seconds - steps.first_seconds
    rate = (steps.steps_total - 1) / elapsed if elapsed else None
    monitor = executor().monitor
    reporter = monitor.reporter if isinstance(monitor, Reported) else None
    work = executor().work()
    return {
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", "0") or 0),
        "instance_type": reporter.instance_type if reporter is not None else None,
        "logical_neuroncore_config": reporter.logical_neuroncore_config if reporter is not None else None,
        "is_simulated": True,  # the NeuronCores, whatever the host: times are those of a CPU
        "training_seconds": elapsed,
        "cores": [core.global_index for core in cores],
        "wall_seconds": time.perf_counter() - _started,
        "steps_total": steps.steps_total,
        "samples_total": steps.samples_total if steps.batches_total else None,
        "usual_steps": _usual_steps(),
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
        "flops_by_dtype": dict(work.flops_by_dtype),
        "places": [
            {"what": place[0], "file": place[1], "line": place[2], "count": count, "steps": places.steps[place]}
            for place, count in places.counts.copy().most_common(_MOST_PLACES)
        ],
        "graph_changes": list(executor().graph_changes.latest),
        "loader_wait_seconds": step_clock.so_far().input_wait_seconds,
        "host_parameters": optimizer_memory.host_parameters,
        "deprecated_variables": [name for name in _DEPRECATED if os.environ.get(name) == "1"],
        "cores_without_work": sum(not c.statistics.executions_total for c in cores),
        "hbm_limit_bytes": max((c.memory.limit_bytes for c in cores), default=0),
        "executed_tensors_total": work.tensors_total,
        "moved_bytes": work.moved_bytes,
        "batches_total": steps.batches_total or None,
        "batch_samples": steps.largest_batch or None,
        "weight_bytes": optimizer_memory.weight_bytes,
        "gradient_bytes": optimizer_memory.gradient_bytes,
        "optimizer_state_bytes": optimizer_memory.state_bytes,
        "hbm_warm_bytes": hbm_growth.warm_bytes,
        "hbm_latest_bytes": hbm_growth.latest_bytes,
        "hbm_rises_total": hbm_growth.rises_total,
        "saves_total": saves.saves_total,
        "save_seconds": saves.seconds,
        "compile_cache_stored_total": executor().cache.stored_total,
        "hbm_bytes": sum(buffers.account_of(c).total_bytes for c in cores),
        "hbm_peak_bytes": max((c.memory.peak_bytes for c in cores), default=0),
        "to_device_bytes": sum(c.statistics.to_device_bytes for c in cores),
        "from_device_bytes": sum(c.statistics.from_device_bytes for c in cores),
        "collectives_total": sum(c.statistics.collectives_total for c in cores),
        "collective_p50_seconds": collectives.quantile(0.5) if collectives else None,
        "collective_p99_seconds": collectives.quantile(0.99) if collectives else None,
        "collective_seconds": sum(c.statistics.collective_seconds for c in cores),
        "collective_bytes": sum(c.statistics.collective_bytes for c in cores),
        "numerical_errors_total": sum(c.statistics.numerical_errors_total for c in cores),
        "fallbacks_total": sum(n for name, n in list(metrics.counters.items()) if name.startswith("aten::")),
    }


def _usual_steps() -> dict[str, Any] | None:
    """What was counted in steps between which nothing else was executed, under the names of the totals."""
    total = usual_steps.total()
    if total is None:
        return None
    count, counts, executions_total, work = total
    return {
        "steps_total": count,
        "samples_total": counts.samples if steps.batches_total else None,
        "batches_total": counts.batches or None,
        "executions_total": executions_total,
        "executed_tensors_total": work.tensors_total,
        "moved_bytes": work.moved_bytes,
        "flop_total": work.flops,
        "flops_by_dtype": dict(work.flops_by_dtype),
        "collectives_total": counts.collectives,
        "collective_bytes": counts.collective_bytes,
    }


def keep_in(directory: Path) -> None:
    """Keeps the summary of this process in a directory, up to date, once it has NeuronCores."""
    SummaryFile(directory, lambda: document() if device.taken else None).start()
