"""An optimizer that updates parameters on the host while the device trains."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "optimizer-on-host"


def advice(evidence: Evidence) -> Advice | None:
    """Any parameter with a gradient on the host."""
    count = evidence.count("host_parameters")
    if not count:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"an optimizer updates {count:.0f} parameter(s) on the host",
        place=None,
        fix="move the whole model with model.to(device) before the optimizer is made",
        effect="the update is part of the step's graph",
        effect_is=Effect.COUNTED,
        source="PyTorch's manual of torch.optim",
        lost_ratio=0.2,
    )
