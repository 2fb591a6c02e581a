"""Hardly any HBM left."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import bytes_text

RULE = "hbm-headroom"
_RATIO = 0.9


def advice(evidence: Evidence) -> Advice | None:
    """Over nine tenths of a core's memory at the peak."""
    limit, peak = evidence.count("hbm_limit_bytes"), evidence.run.peak_bytes
    if not limit or peak <= _RATIO * limit:
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{bytes_text(peak)} of {bytes_text(int(limit))} of HBM at the peak",
        place=None,
        fix="a smaller batch, torch_xla.utils.checkpoint, or bfloat16; the device's compiler may need more than ours",
        effect="no failed allocation on the device",
        effect_is=Effect.GUESS,
        source="torch-tb-profiler's threshold (90%)",
        lost_ratio=0.15,
    )
