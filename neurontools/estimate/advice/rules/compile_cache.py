"""Graphs that are compiled anew in every run."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "compile-cache"


def advice(evidence: Evidence) -> Advice | None:
    """Nothing of what was compiled was kept."""
    graphs = int(evidence.count("graphs_compiled_total"))
    if evidence.rank.get("compile_cache_stored_total") != 0 or not graphs:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"graphs that were compiled and not kept: {graphs}; the compile cache is off or can't be used",
        place=None,
        fix="leave out --no_cache of NEURON_CC_FLAGS, and set NEURON_COMPILE_CACHE_URL to a directory that stays",
        effect="minutes for each graph on the device; 40 to 13 min for BERT's pre-training",
        effect_is=Effect.PUBLISHED,
        source="Neuron's tutorial on BERT's pre-training",
        lost_ratio=0.1,
    )
