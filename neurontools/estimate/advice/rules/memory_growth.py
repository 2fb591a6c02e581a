"""HBM that is never given back: a loss that is kept with its graph, lists of results."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import bytes_text

RULE = "memory-growth"
_RATIO = 0.05
_OF_STEPS = 0.5
_LEAST_BYTES = 1 << 20  # kept scalars are no fault


def advice(evidence: Evidence) -> Advice | None:
    """More after half of the steps than ever before, and 5 % more at the end than after the warm-up."""
    first, last = evidence.count("hbm_warm_bytes"), evidence.count("hbm_latest_bytes")
    grown = last - first
    rises = evidence.count("hbm_rises_total")
    if grown < max(_RATIO * first, _LEAST_BYTES) or rises <= _OF_STEPS * evidence.run.steps_total:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"HBM grew from {bytes_text(int(first))} to {bytes_text(int(last))}, in {rises:.0f} of "
        f"{evidence.run.steps_total} steps",
        place=evidence.first("mark_step"),
        fix="keep values and no graphs: total += loss.detach(); drop results that are not needed any more",
        effect="the run does not end for want of memory",
        effect_is=Effect.COUNTED,
        source="SageMaker's rule GPUMemoryIncrease (5% in 10 steps)",
        lost_ratio=0.2,
    )
