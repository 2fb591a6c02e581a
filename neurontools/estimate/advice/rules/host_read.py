"""Values read by the host while a step is being recorded: .item(), print, an if on a tensor."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "host-read"
_A_STEP = 0.5


def advice(evidence: Evidence) -> Advice | None:
    """In more than every second step; what an evaluation between two steps reads is in one of them."""
    places = evidence.at("read")
    if sum(place.steps for place in places) <= _A_STEP * evidence.run.steps_total:
        return None
    reads = sum(place.count for place in places)
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"the host read a value {reads} times in {evidence.run.steps_total} steps, and waited for the device",
        place=places[0].text,
        fix="read every so many steps, or after the step: xm.add_step_closure(print, args=(loss,))",
        effect="the host records ahead again, and batches_per_execution above 1 becomes possible",
        effect_is=Effect.DOCUMENTED,
        source="PyTorch/XLA's metrics analysis (0.5 a step); Neuron's guide to training with PyTorch",
        lost_ratio=0.9 * evidence.host_ratio + 0.01,
    )
