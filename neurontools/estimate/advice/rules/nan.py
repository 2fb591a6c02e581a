"""Results that are no numbers."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "nan"


def advice(evidence: Evidence) -> Advice | None:
    """Any execution with NaN in what it computed."""
    count = evidence.count("numerical_errors_total")
    if not count:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{count:.0f} executions had NaN in their results",
        place=None,
        fix="NEURON_FAIL_ON_NAN=1 stops at the first; then a lower learning rate, clipped gradients, or a wider type",
        effect="what is trained from there on is worth nothing",
        effect_is=Effect.COUNTED,
        source="the Neuron runtime's status EXEC_COMPLETED_WITH_NUM_ERR",
        lost_ratio=2.0,
    )
