"""NeuronCores that are held and compute nothing."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "idle-cores"


def advice(evidence: Evidence) -> Advice | None:
    """Any core of the process without an execution."""
    idle = int(evidence.count("cores_without_work"))
    held = len(evidence.rank.get("cores") or ())
    if not idle or not held:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{idle} of {held} NeuronCores were held and computed nothing",
        place=None,
        fix=f"NEURON_RT_NUM_CORES={held - idle}, or a worker a core: neuron-run -n {held}",
        effect=f"up to {held / (held - idle):.1f} times the samples/s, or cores for others",
        effect_is=Effect.COUNTED,
        source="the run's own executions",
        lost_ratio=0.4,
    )
