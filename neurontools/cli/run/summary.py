"""What neuron-run says at the end: the workers' own counts, added up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neurontools.util.units import UNKNOWN, bytes_text, count_text, duration_text, flops_text, percent_text

_SUMS = [
    "samples_total",
    "graphs_compiled_total",
    "executions_total",
    "failed_executions_total",
    "busy_seconds",
    "flop_total",
    "to_device_bytes",
    "from_device_bytes",
    "collective_seconds",
    "collective_bytes",
    "collectives_total",
    "numerical_errors_total",
    "fallbacks_total",
    "compile_seconds",
]
_LARGEST = [
    "wall_seconds",
    "steps_total",
    "hbm_peak_bytes",
    "step_p50_seconds",
    "step_p99_seconds",
    "execution_p50_seconds",
    "execution_p99_seconds",
    "collective_p50_seconds",
    "collective_p99_seconds",
    "training_seconds",
]


DIRECTORY = "NEURONTOOLS_SUMMARY_DIRECTORY"  # as the runtime knows it


def read_workers(directory: Path | None) -> list[dict[str, Any]]:
    """What the workers told last, by rank; that of a worker that was killed may be a second old."""
    found = []
    for path in directory.glob("*.json") if directory is not None else ():
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return sorted((w for w in found if isinstance(w, dict)), key=lambda worker: worker.get("rank", 0))


def combined(
    workers: list[dict[str, Any]], exit_code: int, wall_seconds: float, worker_count: int | None = None
) -> dict[str, Any]:
    """One document for the run. Sums over the workers, except times of a step and peaks: those are the largest.

    `worker_count` is how many there were, of which some may have left nothing.
    """
    count = len(workers) if worker_count is None else worker_count
    document: dict[str, Any] = {"exit_code": exit_code, "wall_seconds": wall_seconds, "workers": count}
    for name in _SUMS:
        known = [worker[name] for worker in workers if worker.get(name) is not None]
        document[name] = sum(known) if known else None
    for name in _LARGEST[1:]:
        document[name] = max((w[name] for w in workers if w.get(name) is not None), default=None)
    training = document["training_seconds"]
    steps = document["steps_total"]
    document["steps_per_second"] = (steps - 1) / training if training and steps and steps > 1 else None
    for name, total in (("samples_per_second", "samples_total"), ("flops_per_second", "flop_total")):
        document[name] = _per_second(workers, total, document["steps_per_second"])
    document["instance_type"] = _first_known(workers, "instance_type")
    document["cores"] = sorted({core for worker in workers for core in worker.get("cores", ())})
    document["mfu_ratio"] = _mfu(document, _first_known(workers, "logical_neuroncore_config"))
    document["ranks"] = workers
    return document


def _per_second(workers: list[dict[str, Any]], total: str, steps_per_second: float | None) -> float | None:
    """What all workers do in a step, at the rate of steps: nothing of an evaluation, or of what is after the last step.

    None where it isn't known.
    """
    a_step = []
    for worker in workers:
        counted = worker.get("usual_steps") or worker
        if counted.get(total) is not None and counted.get("steps_total"):
            a_step.append(counted[total] / counted["steps_total"])
    return sum(a_step) * steps_per_second if a_step and steps_per_second else None


def _first_known(workers: list[dict[str, Any]], name: str) -> Any:
    return next((worker[name] for worker in workers if worker.get(name)), None)


def _mfu(document: dict[str, Any], logical_neuroncore_config: int | None) -> float | None:
    """Achieved FLOPs a second over the bf16 peak of the cores in use; None where either is unknown."""
    achieved, instance_type = document["flops_per_second"], document["instance_type"]
    if achieved is None or instance_type is None or not document["cores"] or not logical_neuroncore_config:
        return None
    from neurontools import catalog

    peak = catalog.peak_flops_per_core(instance_type)
    if peak is None:
        return None
    return float(achieved / (peak * logical_neuroncore_config * len(document["cores"])))


def text(document: dict[str, Any]) -> str:
    """The summary for people, a quantity a line."""
    rate = document["steps_per_second"]
    samples = document["samples_per_second"]
    rows = [
        ("workers", count_text(document["workers"])),
        ("wall time", duration_text(document["wall_seconds"])),
        ("steps", count_text(document["steps_total"]) + (f" ({rate:.1f}/s)" if rate else "")),
        ("step time", _pair(document["step_p50_seconds"], document["step_p99_seconds"])),
        ("samples", count_text(document["samples_total"]) + (f" ({samples:.1f}/s)" if samples else "")),
        (
            "graphs",
            f"{count_text(document['graphs_compiled_total'])} compiled in {duration_text(document['compile_seconds'])}",
        ),
        (
            "executions",
            f"{count_text(document['executions_total'])}, "
            + _pair(document["execution_p50_seconds"], document["execution_p99_seconds"]),
        ),
        ("compute", f"{flops_text(document['flops_per_second'])}, MFU {percent_text(document['mfu_ratio'], 4)}"),
        ("HBM peak", bytes_text(document["hbm_peak_bytes"])),
        (
            "transfers",
            (
                f"{bytes_text(document['to_device_bytes'])} to, "
                f"{bytes_text(document['from_device_bytes'])} from the device"
            ),
        ),
        (
            "collectives",
            count_text(document["collectives_total"]) + _collective_text(document),
        ),
        (
            "errors",
            (
                f"{count_text(document['failed_executions_total'])} failed, "
                f"{count_text(document['numerical_errors_total'])} with NaN"
            ),
        ),
    ]
    cost = _cost_text(document)
    if cost is not None:
        rows.append(("would cost", cost))
    if document["fallbacks_total"]:
        rows.append(("fallbacks", f"{count_text(document['fallbacks_total'])} operators ran on the host"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows) + "\n"


def _cost_text(document: dict[str, Any]) -> str | None:
    """What the same steps would cost on an instance of the simulated type; None where nothing can be told."""
    from neurontools.estimate import CountedRun, EstimateError, estimate
    from neurontools.estimate.report import dollars

    try:
        costs = estimate(CountedRun.from_summary(document), document["instance_type"] or "").costs
    except EstimateError:
        return None
    if not costs:
        return None
    return f"{costs[0].thousand_steps_usd.text(dollars)} for 1,000 steps on {document['instance_type']}, an estimate"


def _collective_text(document: dict[str, Any]) -> str:
    if not document["collectives_total"]:
        return ""
    middle = duration_text(document["collective_p50_seconds"])
    return (
        f", {bytes_text(document['collective_bytes'])} in {duration_text(document['collective_seconds'])}, p50 {middle}"
    )


def _pair(middle: float | None, high: float | None) -> str:
    if middle is None:
        return UNKNOWN
    return f"p50 {duration_text(middle)}, p99 {duration_text(high)}"
