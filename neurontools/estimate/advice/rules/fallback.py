"""Operators that the device can't run, which run on the host in each step."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "fallback"
_A_STEP = 0.5
_PREFIX = "fallback "


def advice(evidence: Evidence) -> Advice | None:
    """One in two steps at the least."""
    places = [place for place in evidence.at(_PREFIX) if place.steps > _A_STEP * evidence.run.steps_total]
    if not places:
        return None
    most = places[0]
    others = f", and others at {len(places) - 1} more place(s)" if len(places) > 1 else ""
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{most.what.removeprefix(_PREFIX)} ran on the host {most.count} times in "
        f"{evidence.run.steps_total} steps{others}",
        place=most.text,
        fix="replace it by one whose shape doesn't depend on values (torch.where, a mask), or move it out of the step",
        effect="the step is one graph again: nothing is copied to the host and back",
        effect_is=Effect.COUNTED,
        source="PyTorch/XLA's troubleshooting guide",
        lost_ratio=0.5 * evidence.host_ratio + 0.05,
    )
