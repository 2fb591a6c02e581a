"""More than one execution for a batch that no read or fallback explains: a mark_step too many."""

from __future__ import annotations

from neurontools.advice.evidence import Evidence
from neurontools.advice.finding import Advice, Effect, Truth

RULE = "two-executions"
_MOST_A_BATCH = 1.5
_A_STEP = 0.5


def advice(evidence: Evidence) -> Advice | None:
    """Over one and a half executions a batch, or a step where batches are not known."""
    run = evidence.run
    batches = max(run.batches or 1.0, 1.0)
    others = sum(place.count for place in (*evidence.at("read"), *evidence.at("fallback")))
    marks = evidence.at("mark_step")
    if run.executions <= _MOST_A_BATCH * batches or others > _A_STEP * run.steps_total or not marks:
        return None
    # A loop over a loader marks by itself, at its own line: the other one is too many.
    extra = marks[-1] if len(marks) > 1 and marks[-1].count > run.steps_total / 2 else marks[0]
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{run.executions / batches:.1f} executions for each batch; one is enough",
        place=extra.text,
        fix="mark one step a batch: MpDeviceLoader and xm.optimizer_step(barrier=True) do it by themselves",
        effect="half the launches, and no intermediate result goes to HBM and back",
        effect_is=Effect.DOCUMENTED,
        source="Neuron's guide to training with PyTorch: one execution an iteration",
        lost_ratio=0.5 * evidence.host_ratio + 0.005,
    )
