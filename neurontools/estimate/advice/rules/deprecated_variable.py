"""Variables that the SDK no longer knows."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "deprecated-variable"


def advice(evidence: Evidence) -> Advice | None:
    """XLA_USE_BF16 or XLA_DOWNCAST_BF16 is set."""
    names = evidence.rank.get("deprecated_variables") or []
    if not names:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{' and '.join(map(str, names))} is set; SDK 2.24 was the last to support it",
        place=None,
        fix="model.to(torch.bfloat16), or torch.autocast",
        effect="about 11% fewer samples/s in AWS's BERT pre-training, and it goes on working",
        effect_is=Effect.PUBLISHED,
        source="Neuron's release notes; pytorch/xla issue 8545",
        lost_ratio=0.02,
    )
