"""All rules, and what they say of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice
from neurontools.estimate.advice.rules import (
    batches_per_execution,
    checkpoint_cost,
    compile_cache,
    deprecated_variable,
    fallback,
    float32,
    hbm_headroom,
    host_read,
    idle_cores,
    loader_wait,
    memory_growth,
    nan,
    optimizer_on_host,
    outside_loop,
    recompile,
    small_collectives,
    two_executions,
)

LEAST_STEPS = 10
"""Fewer steps tell nothing that goes on."""

_RULES: dict[str, Callable[[Evidence], Advice | None]] = {
    module.RULE: module.advice
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
        memory_growth,
        hbm_headroom,
        compile_cache,
        checkpoint_cost,
        outside_loop,
        nan,
        idle_cores,
        deprecated_variable,
    )
}
RULES = tuple(_RULES)
"""The names of all rules."""


def advice(document: Mapping[str, Any], ignored: Collection[str] = ()) -> list[Advice]:
    """What to change, what costs most first; empty where nothing is wrong or too little was seen.

    Rules whose names are `ignored` say nothing.
    """
    evidence = Evidence.of(document)
    if evidence is None or evidence.run.steps_total < LEAST_STEPS:
        return []
    rules = [rule for name, rule in _RULES.items() if name not in ignored]
    found = [each for rule in rules if (each := rule(evidence)) is not None]
    return sorted(found, key=lambda each: -each.lost_ratio)
