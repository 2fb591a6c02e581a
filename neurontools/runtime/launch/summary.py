"""Builds the summary of this training process, writes it to a file for neuron-run, and derives advice from it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from neurontools.driver.environment import EVERY_RULE, IGNORED_RULES
from neurontools.model import ScriptAdvice, ServedModel
from neurontools.model.execution import latency_percentiles
from neurontools.runtime.counting.metrics import call_sites, metrics
from neurontools.runtime.counting.steps import saves, step_clock, steps
from neurontools.runtime.execution.traced_work import traced_model_works
from neurontools.runtime.execution.work import steady_state
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.launch.training_statistics import hbm_growth, optimizer_memory
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.reporting.process_end import at_process_end
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.buffers import buffers
from neurontools.runtime.tensors.cores import Reported
from neurontools.runtime.tensors.device import device
from neurontools.util.directory import Directory

_FILE_INTERVAL_SECONDS = 1.0
_MOST_PLACES = 64
_DEPRECATED = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
started_at_seconds = time.perf_counter()


def build_summary() -> dict[str, Any]:
    """Builds the summary of this process as a JSON object. The keys contain the units. Unknown values are None."""
    cores = device.acquired_cores
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
        "is_simulated": True,  # the runtime always executes programs on the CPU, even on a Neuron host
        "training_seconds": elapsed,
        "start_run_delay_seconds": steps.start_run_delay_seconds,
        "training_run_delay_seconds": steps.training_run_delay_seconds(),
        "cores": [core.global_index for core in cores],
        "wall_seconds": time.perf_counter() - started_at_seconds,
        "steps_total": steps.steps_total,
        "samples_total": steps.samples_total if steps.batches_total else None,
        "steady_state": _steady_state_totals(),
        "split": _split(),
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
            {
                "what": place[0],
                "file": place[1],
                "line": place[2],
                "count": count,
                "steps": call_sites.steps[place],
                "seconds": call_sites.seconds.get(place),
                "late_steps": list(call_sites.late_steps.get(place, ())),
            }
            for place, count in call_sites.counts.copy().most_common(_MOST_PLACES)
        ],
        "graph_changes": list(executor().graph_changes.latest),
        "loader_wait_seconds": step_clock.read_times().input_wait_seconds,
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
        "operators": executor().operator_names(),
        "traced_models": traced_model_works.documents(),
        "served_models": [_served_totals(served) for served in inference_log.read()],
        "fallbacks_total": sum(n for name, n in list(metrics.counters.items()) if name.startswith("aten::")),
    }


def _served_totals(served: ServedModel) -> dict[str, Any]:
    latency = latency_percentiles(served.total_latency_histogram)
    return {
        "name": served.name,
        "requests_total": served.requests_total,
        "failed_requests_total": served.failed_requests_total,
        "calls_total": served.calls_total,
        "samples_total": served.samples_total,
        "tokens_total": served.tokens_total,
        "latency_p50_seconds": None if latency is None else latency.p50_seconds,
        "latency_p99_seconds": None if latency is None else latency.p99_seconds,
    }


def _steady_state_totals() -> dict[str, Any] | None:
    """Returns the totals of all steady-state steps under the summary's keys, or None if there are no such steps."""
    total = steady_state.total()
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


def _split() -> dict[str, Any] | None:
    """Returns the time of all steps but the first by part, under the names of a profile's split; None if unknown."""
    found = steps.split_times()
    if found is None:
        return None
    count, total_seconds, parts = found
    names = ("compile_seconds", "input_wait_seconds", "transfer_seconds", "compute_seconds", "collective_seconds")
    host_seconds = max(0.0, total_seconds - sum(parts))
    return {"steps_total": count, "total_seconds": total_seconds, "host_seconds": host_seconds} | dict(
        zip(names, parts, strict=True)
    )


class SummaryFile:
    """Writes the summary of this process to a file once a second in its own thread, until the process ends.

    While the process has no NeuronCores, there is no file. If the process is killed, the file is at most a second old.
    An error, such as a full disk, does not stop the training. A forked child writes nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._pid = os.getpid()
        self._directory = directory
        self._write_lock = Lock()
        self._ended = Event()
        self._is_there = False

    def start(self) -> None:
        """Starts the thread. If the system refuses a thread, the file is written only when the process ends."""
        at_process_end(self._end)
        try:
            Thread(target=self._run, name="neurontools-summary", daemon=True).start()
        except RuntimeError:
            return

    def _run(self) -> None:
        self._write(has_ended=False)
        while not self._ended.wait(_FILE_INTERVAL_SECONDS):
            self._write(has_ended=False)

    def _end(self) -> None:
        if os.getpid() == self._pid and not self._ended.is_set():
            self._ended.set()
            self._write(has_ended=True)

    def _write(self, *, has_ended: bool) -> None:
        with self._write_lock:
            if self._ended.is_set() and not has_ended:
                return
            try:
                name = f"{self._pid}.json"
                with Directory.open(self._directory) as directory:
                    if device.acquired_cores:
                        document = build_summary()
                        document |= {"has_ended": has_ended, "failure": _failure() if has_ended else None}
                        directory.replace(name, json.dumps(document).encode(), 0o600)
                        self._is_there = True
                    elif self._is_there:  # no longer valid: this process gave its cores to workers
                        directory.remove(name)
                        self._is_there = False
            except Exception:  # no error may stop the training; the next second tries again
                return


def _failure() -> str | None:
    """Returns the text of the exception that ends this process. None for a normal end or sys.exit."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return None
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


_ADVICE_INTERVAL_SECONDS = 10.0
_MIN_STEPS = 20  # number of steps before the first advice, because early steps may not be typical
_MAX_LOCK_WAIT_SECONDS = 0.05  # longest wait for the runtime's lock; after a time-out, the next report tries again
_RULES_OF_WHOLE_RUNS = frozenset({"outside-loop"})  # skipped while a script runs: each starts outside its loop


class AdviceReporter:
    """Adds advice to the reports of a running script, by the same rules as neuron-run's final advice.

    Evaluates the rules every ten seconds in the reporter's thread, which takes less than a millisecond. Skips the rules
    in NEURONTOOLS_IGNORE_ADVICE.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._ignored = _RULES_OF_WHOLE_RUNS.union(environment.get(IGNORED_RULES, "").split(","))
        self._next_seconds = time.monotonic() + _ADVICE_INTERVAL_SECONDS
        self._evaluated_steps = 0

    def __call__(self, reporter: Reporter) -> None:
        """Evaluates the rules if ten seconds and at least one step have passed since the last evaluation."""
        now_seconds = time.monotonic()
        if now_seconds < self._next_seconds or steps.steps_total < max(_MIN_STEPS, self._evaluated_steps + 1):
            return
        if EVERY_RULE in self._ignored or not buffers.lock.acquire(timeout=_MAX_LOCK_WAIT_SECONDS):
            return
        try:
            counted = build_summary()
        finally:
            buffers.lock.release()
        self._next_seconds, self._evaluated_steps = now_seconds + _ADVICE_INTERVAL_SECONDS, steps.steps_total
        from neurontools.estimate.rules import find_advice

        workers = int(os.environ.get("WORLD_SIZE", "1") or 1)
        found = find_advice(
            {"ranks": [counted], "workers": workers, "instance_type": counted["instance_type"]},
            self._ignored,
            predicts_savings=False,
        )
        reporter.set_advice([ScriptAdvice(a.rule, a.measured, a.place, a.fix, a.effect) for a in found])
