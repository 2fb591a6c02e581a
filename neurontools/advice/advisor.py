"""All rules, and what they say of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neurontools.advice.evidence import Evidence
from neurontools.advice.finding import Advice
from neurontools.advice.rules import (
    batches_per_execution,
    deprecated_variable,
    fallback,
    float32,
    hbm_headroom,
    host_read,
    idle_cores,
    loader_wait,
    nan,
    optimizer_on_host,
    recompile,
    small_collectives,
    two_executions,
)

LEAST_STEPS = 10
"""Fewer steps tell nothing that goes on."""

_RULES: tuple[Callable[[Evidence], Advice | None], ...] = tuple(
    module.advice
    for module in (
        recompile,
        host_read,
        two_executions,
        batches_per_execution,
        fallback,
        float32,
        optimizer_on_host,
        loader_wait,
        small_collectives,
        hbm_headroom,
        nan,
        idle_cores,
        deprecated_variable,
    )
)


def advice(document: Mapping[str, Any]) -> list[Advice]:
    """What to change, what costs most first; empty where nothing is wrong or too little was seen."""
    evidence = Evidence.of(document)
    if evidence is None or evidence.run.steps_total < LEAST_STEPS:
        return []
    found = [each for rule in _RULES if (each := rule(evidence)) is not None]
    return sorted(found, key=lambda each: -each.lost_ratio)
