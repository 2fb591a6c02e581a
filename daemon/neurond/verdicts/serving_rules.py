"""Rules about processes that serve models: held cores without a model, and weights that are loaded twice on a core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from neurond.verdicts.evidence import RuleContext
from neurond.verdicts.process_rules import process_finding
from neurontools.model import Finding, Process, Severity
from neurontools.model.finding import FindingKind
from neurontools.model.serving import request_models
from neurontools.util.units import bytes_text, ranges_text

_LEAST_WASTE_BYTES = 16 * 2**20  # less duplicated memory is not worth a finding


def cores_without_model(context: RuleContext) -> Iterator[Finding]:
    """Reports processes that have served requests for the idle limit and hold cores without a model and without work.

    Skips processes that train, and cores that executed anything.
    """
    limit, snapshot = context.limits.idle_seconds, context.snapshot
    for process in snapshot.processes:
        began, models = process.counted_since_seconds, request_models(process.served_models)
        is_training = process.training is not None and process.training.steps_total > 0
        if limit is None or not models or is_training or not process.reporting or began is None:
            continue
        unused = _unused_cores(process)
        is_loaded = any(served.placements for served in process.served_models)
        if not unused or not is_loaded or snapshot.taken_at_seconds - began < limit:
            continue
        used = len(process.neuroncore_indices) - len(unused)
        yield process_finding(
            process,
            FindingKind.CORES_WITHOUT_MODEL,
            Severity.NOTICE,
            f"PID {process.pid} holds {len(process.neuroncore_indices)} NeuronCores and serves on {used}; no model is "
            f"on NC {ranges_text(unused)}",
            "load the model on all cores with torch_neuronx.DataParallel, or set NEURON_RT_NUM_CORES to what it uses",
            snapshot.taken_at_unix_seconds - (snapshot.taken_at_seconds - began) + limit,
        )


def _unused_cores(process: Process) -> list[int]:
    """Returns the held logical cores without a model and without work; none if their work is not reported."""
    loaded = {index for served in process.served_models for index in served.neuroncore_indices}
    loaded |= {part.neuroncore_index for model in process.models for part in model.subgraphs}
    if len(process.core_work) != len(process.neuroncore_indices):
        return []
    work = zip(process.neuroncore_indices, process.core_work, strict=True)
    return [index for index, done in work if not done.busy_seconds_total and index not in loaded]


def duplicated_weights(context: RuleContext) -> Iterator[Finding]:
    """Reports processes that keep the same weights more than once on one core."""
    for process in context.snapshot.processes:
        if not process.reporting or not process.served_models:
            continue
        placed = [
            (served.name, each)
            for served in process.served_models
            for each in served.placements
            if each.weights_id is not None and each.weights_bytes
        ]
        counts = Counter((each.neuroncore_index, each.weights_id) for _, each in placed)
        sizes = {(each.neuroncore_index, each.weights_id): each.weights_bytes or 0 for _, each in placed}
        wasted_bytes = sum((count - 1) * sizes[key] for key, count in counts.items())
        if wasted_bytes < _LEAST_WASTE_BYTES:
            continue
        twice = {key for key, count in counts.items() if count > 1}
        names = sorted({name for name, each in placed if (each.neuroncore_index, each.weights_id) in twice})
        yield process_finding(
            process,
            FindingKind.DUPLICATED_WEIGHTS,
            Severity.NOTICE,
            f"PID {process.pid} keeps equal weights of {', '.join(names[:3])} more than once on NC "
            f"{ranges_text(sorted({core for core, _ in twice}))}, {bytes_text(wasted_bytes)} too much",
            "load each model once and share it between threads; for several input shapes, use "
            "torch_neuronx.bucket_model_trace, which keeps one copy",
            context.snapshot.taken_at_unix_seconds,
        )
