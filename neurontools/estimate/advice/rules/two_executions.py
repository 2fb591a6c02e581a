"""More than one execution for a batch that no read or fallback explains: a mark_step too many."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "two-executions"
_MOST_A_BATCH = 1.5
_A_STEP = 0.5


def advice(evidence: Evidence) -> Advice | None:
    """Over one and a half executions a batch.

    Where no loader tells batches, the line of the loop that marks most often is taken to mark one: gradients may be
    accumulated.
    """
    run = evidence.run
    others = sum(place.count for place in (*evidence.at("read"), *evidence.at("fallback")))
    marks = evidence.at("mark_step")
    in_loop = [place for place in marks if place.steps > _A_STEP * run.steps_total]
    batches = run.batches
    if batches is None:
        batches = max((place.count for place in in_loop), default=0) / run.steps_total
    batches = max(batches, 1.0)
    if run.executions <= _MOST_A_BATCH * batches or others > _A_STEP * run.steps_total or not marks:
        return None
    # A loop over a loader marks by itself, at its own line: the other one is too many.
    extra = in_loop[-1] if in_loop else marks[0]
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
