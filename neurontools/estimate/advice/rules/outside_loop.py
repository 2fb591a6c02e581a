"""Runs that spend most of their time before and after training."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import duration_text

RULE = "outside-loop"
_RATIO = 0.5
_LEAST_SECONDS = 30.0  # imports and a model that is loaded


def advice(evidence: Evidence) -> Advice | None:
    """Half of the run, and half a minute."""
    wall, training = evidence.count("wall_seconds"), evidence.count("training_seconds")
    outside = wall - training
    if not training or outside < max(_RATIO * wall, _LEAST_SECONDS):
        return None
    return Advice(
        rule=RULE,
        truth=Truth.CPU,
        measured=f"{duration_text(outside)} of {duration_text(wall)} were before the first step or after the last",
        place=evidence.first("mark_step"),
        fix="prepare data once and store them (tokenised, resized); evaluate more seldom; keep the compile cache",
        effect="an instance is paid while it prepares",
        effect_is=Effect.GUESS,
        source="the article on BERT's fine-tuning, by its own times; SageMaker's rule MaxInitializationTime",
        lost_ratio=outside / wall / 2,
    )
