"""Many small collectives, each of which waits for its own latency."""

from __future__ import annotations

from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth
from neurontools.util.units import bytes_text

RULE = "small-collectives"
_MOST = 20
_SMALL_BYTES = 2**20


def advice(evidence: Evidence) -> Advice | None:
    """Over 20 a step, of less than 1 MiB on average."""
    run = evidence.run
    if run.collectives <= _MOST or run.collective_bytes / run.collectives >= _SMALL_BYTES:
        return None
    mean = bytes_text(round(run.collective_bytes / run.collectives))
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"{run.collectives:.0f} collectives a step of {mean} on average",
        place=None,
        fix="reduce gradients in buckets: xm.optimizer_step does, and so does DistributedDataParallel with a larger "
        "bucket_cap_mb",
        effect=f"{1e3 * 58e-6 * run.collectives:.1f} to {1e3 * 300e-6 * run.collectives:.1f} ms a step of latency",
        effect_is=Effect.COUNTED,
        source="AWS's guide to nccom-test",
        lost_ratio=min(evidence.step.collectives.middle / evidence.step.total.middle, 1.0),
    )
