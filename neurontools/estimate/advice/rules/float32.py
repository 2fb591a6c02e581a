"""Matrices multiplied in float32, at a quarter of the peak."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "float32"
_SHARE = 0.5
_COMPUTE_RATIO = 0.3


def advice(evidence: Evidence) -> Advice | None:
    """Over half of the FLOPs, where compute is a third of a step at least."""
    run = evidence.run
    wide = run.flops_by_dtype.get("float32", 0.0) / run.flops
    if wide <= _SHARE or 1 - evidence.host_ratio < _COMPUTE_RATIO:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{wide:.0%} of the FLOPs are float32; --auto-cast is none by default since SDK 2.27",
        place=None,
        fix="model.to(torch.bfloat16), or NEURON_CC_FLAGS=--auto-cast=matmult; "
        "NEURON_RT_STOCHASTIC_ROUNDING_EN=1 keeps small updates",
        effect="1.48 times the samples/s for a ViT-B/16 on inf2.xlarge, 3.9 times with batches_per_execution=10",
        effect_is=Effect.PUBLISHED,
        source="the article on ViT, steps 5 and 6; the devices' data sheets",
        lost_ratio=0.35 * (1 - evidence.host_ratio),
    )
