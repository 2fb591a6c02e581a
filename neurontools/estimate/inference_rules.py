"""Rules of advice for runs that only execute models, without a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neurontools.estimate.advice import DEFAULT_INSTANCE_TYPE, Advice, EffectBasis, Truth
from neurontools.estimate.counted_run import EstimateError
from neurontools.estimate.inference import InferenceEstimate, counted_models, estimate_inference
from neurontools.estimate.training import WhatIf, WhatIfKind

LEAST_EXECUTIONS = 10
"""Fewest executions of the model with the most FLOPs for which there is advice."""

_LEAST_SPEEDUP = 1.2
_FIT = "AWS's published inference rows, fitted by launch time and share of the peak; docs/estimate.md"


def _advice(rule: str, kind: WhatIfKind, source: str) -> Callable[[InferenceEstimate], Advice | None]:
    """Returns a rule that applies if the estimate predicts at least 1.2 times the samples/s for a change."""

    def find(estimate: InferenceEstimate) -> Advice | None:
        change = next((each for each in estimate.what_ifs if each.kind is kind), None)
        if change is None or change.speedup is None or change.speedup.high < _LEAST_SPEEDUP:
            return None
        return Advice(
            rule=rule,
            truth=Truth.SCRIPT,
            measured=f"{estimate.model.name}: {change.why}",
            place=None,
            fix=change.change,
            effect=_effect(change, estimate.instance_type),
            effect_is=EffectBasis.PUBLISHED if source is _FIT else EffectBasis.COUNTED,
            source=source,
            lost_ratio=1 - 1 / change.speedup.middle,
        )

    return find


def _effect(change: WhatIf, instance_type: str) -> str:
    speedup = "" if change.speedup is None else change.speedup.text(lambda value: f"{value:.1f}")
    return f"{speedup} times the samples/s on {instance_type}, by the estimate"


_RULES: dict[str, Callable[[InferenceEstimate], Advice | None]] = {
    "inference-cores": _advice("inference-cores", WhatIfKind.CORES, "the cores that executed in this run"),
    "inference-float32": _advice("inference-float32", WhatIfKind.BFLOAT16, _FIT),
    "inference-batch": _advice("inference-batch", WhatIfKind.BATCH, _FIT),
    "inference-padding": _advice("inference-padding", WhatIfKind.BUCKETS, "the rows that dynamic batching added"),
}
INFERENCE_RULES = tuple(_RULES)
"""The names of the rules for inference."""


def find_inference_advice(document: Mapping[str, Any]) -> list[Advice]:
    """Returns advice on the model with the most FLOPs of a run without training; [] for any other run."""
    try:
        model, *_ = counted_models(document)
        found = estimate_inference(model, document.get("instance_type") or DEFAULT_INSTANCE_TYPE)
    except EstimateError:
        return []
    if model.executions_total < LEAST_EXECUTIONS:
        return []
    return [advice for rule in _RULES.values() if (advice := rule(found)) is not None]
