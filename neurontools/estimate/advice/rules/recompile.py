"""New graphs after training was warm: shapes or numbers that change from step to step."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "recompile"
_LEAST = 3
_STEPS_A_GRAPH = 50


def advice(evidence: Evidence) -> Advice | None:
    """More than one new graph in 50 steps, and three at one place at least: an evaluation has graphs of its own."""
    most = max(evidence.at("graph"), key=lambda place: place.count, default=None)
    late = 0 if most is None else most.count
    if late < _LEAST or late * _STEPS_A_GRAPH <= evidence.run.steps_total:
        return None
    changes = evidence.rank.get("graph_changes") or []
    changed = f"; in the last one {changes[-1]}" if changes else ""
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{late} new graphs after the fifth step of {evidence.run.steps_total}{changed}",
        place=None if most is None else most.text,
        fix="give every step the same shapes: pad to one size or a few, DataLoader(drop_last=True), and keep numbers "
        "that change in tensors",
        effect="each new graph is compiled once a cache, which takes minutes on the device",
        effect_is=Effect.DOCUMENTED,
        source="Neuron's guide to training with PyTorch; PyTorch/XLA's troubleshooting guide",
        lost_ratio=1.0,
    )
