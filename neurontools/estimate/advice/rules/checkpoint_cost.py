"""Training that stands still while it is saved."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import duration_text

RULE = "checkpoint-cost"
_RATIO = 0.05
_LEAST_SECONDS = 1.0


def advice(evidence: Evidence) -> Advice | None:
    """A twentieth of the time of training, and a second."""
    saving, training = evidence.count("save_seconds"), evidence.count("training_seconds")
    if not training or saving < max(_RATIO * training, _LEAST_SECONDS):
        return None
    places = evidence.at("save")
    return Advice(
        rule=RULE,
        truth=Truth.CPU,
        measured=f"torch.save took {duration_text(saving)}, beside {duration_text(training)} of training",
        place=places[0].text if places else None,
        fix="save more seldom, from one rank (xm.save), or in the background (torch.distributed.checkpoint.async_save)",
        effect="up to what was spent",
        effect_is=Effect.GUESS,
        source="Neuron's guide to training with PyTorch",
        lost_ratio=min(saving / training, 1.0) / 2,
    )
