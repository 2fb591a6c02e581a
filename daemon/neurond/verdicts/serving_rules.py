"""Rules about processes that serve models: cores without a model, duplicated weights, and slower requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from neurond.verdicts.evidence import ProcessIdentity, RuleContext, process_identity
from neurond.verdicts.process_rules import RisenMedian, RisenMedians, latency_finding, process_finding
from neurontools.model import Finding, Process, ServedModel, Severity
from neurontools.model.finding import FindingKind
from neurontools.model.serving import request_models
from neurontools.util.units import bytes_text, ranges_text

REQUESTS_PART = "requests"
"""The part of a finding about the latency of requests, which tells it from one about executions."""

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


_STEADY_LOAD_RATIO = 1.25  # requests per second may grow by this factor and still count as the same load


class RequestLatencyRule:
    """Reports processes whose median request latency rose although they get about as many requests as before, or less.

    Call it with every tick's snapshot, in order. It names the model with the highest rise.
    """

    def __init__(self) -> None:
        self._medians: RisenMedians[tuple[ProcessIdentity, str]] = RisenMedians()

    def __call__(self, context: RuleContext) -> Iterator[Finding]:
        known = set()
        for process in context.snapshot.processes:
            if not process.reporting:
                continue
            earlier = context.earlier(process)
            risen: list[tuple[RisenMedian, ServedModel]] = []
            for served in request_models(process.served_models):
                past = [_with_the_same_load(served, process, each) for each in earlier]
                key = (process_identity(process), served.name)
                known.add(key)
                found = self._medians.update(
                    key,
                    served.total_latency_histogram,
                    [each.total_latency_histogram for each in past if each is not None],
                    context,
                )
                if found is not None:
                    risen.append((found, served))
            if risen:
                rise, served = max(risen, key=lambda each: each[0].is_seconds / each[0].was_seconds)
                yield latency_finding(
                    process,
                    f"PID {process.pid}: median latency of requests for {served.name} {rise.text}, with no more "
                    "requests than before",
                    "compare queue wait and time on the core in its details (neuron-top): a long wait means a busy "
                    "vCPU or a slow caller, a long time on the core larger batches or a throttled device",
                    rise.began_at_unix_seconds,
                    REQUESTS_PART,
                )
        self._medians.forget_others(known)


def _with_the_same_load(served: ServedModel, process: Process, before: Process) -> ServedModel | None:
    """Returns a served model of `process` as it was in `before`; None if it gets more requests a second since then.

    The rate before is that of the whole time until then, like the latencies. None if a rate is unknown.
    """
    earlier = next((each for each in before.served_models if each.name == served.name), None)
    if earlier is None or earlier.has_application_requests != served.has_application_requests:
        return None
    began_at, split_at, now = before.counted_since_seconds, before.measured_at_seconds, process.measured_at_seconds
    if began_at is None or split_at is None or now is None or not began_at < split_at < now:
        return None
    rate_before = earlier.requests_total / (split_at - began_at)
    rate_since = (served.requests_total - earlier.requests_total) / (now - split_at)
    return earlier if rate_since <= _STEADY_LOAD_RATIO * rate_before else None
