"""Steps that wait for data."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import duration_text

RULE = "loader-wait"
_RATIO = 0.1
_LEAST_SECONDS = 20e-3  # a step; below that a busy CPU alone may be the cause


def advice(evidence: Evidence) -> Advice | None:
    """A tenth of the time of training, on this CPU."""
    waited, training = evidence.count("loader_wait_seconds"), evidence.count("training_seconds")
    if not training or waited < _RATIO * training or waited < _LEAST_SECONDS * evidence.run.steps_total:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.CPU,
        measured=f"steps waited {duration_text(waited)} of {duration_text(training)} for batches",
        place=evidence.first("mark_step"),
        fix="DataLoader(num_workers=…, persistent_workers=True), and work out once what is the same in each epoch",
        effect="up to what was waited; 0.6% where data were made up",
        effect_is=Effect.GUESS,
        source="xprof's threshold (10% of a step); the article on ViT, step 2",
        lost_ratio=min(waited / training, 1.0) / 2,
    )
