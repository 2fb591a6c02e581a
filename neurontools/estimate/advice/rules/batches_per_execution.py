"""One launch for each small batch: the host's launches take as long as the device's work."""

from __future__ import annotations

from neurontools.estimate import prior
from neurontools.estimate.advice.evidence import Evidence
from neurontools.estimate.advice.finding import Advice, Effect, Truth

RULE = "batches-per-execution"
_MOST_BATCHES = 1.5
_SHORT_SECONDS = 40e-3  # what an execution of a training cost the host where it was measured
_HOST_RATIO = 0.3


def advice(evidence: Evidence) -> Advice | None:
    """An execution a batch that is short at the peak of bfloat16, or has the host busy for a third of its time.

    One that is shorter than the launch of a small graph is a toy, of which nothing is published.
    """
    run = evidence.run
    batches = run.batches_per_execution
    if batches is None or not 0.5 < batches <= _MOST_BATCHES:
        return None
    peak_seconds = evidence.machine.seconds_at_peak({"bfloat16": run.flops}) / run.executions
    is_short = prior.LAUNCH_SECONDS <= peak_seconds < _SHORT_SECONDS
    if not is_short and (peak_seconds < prior.LAUNCH_SECONDS or evidence.host_ratio < _HOST_RATIO):
        return None
    return Advice(
        rule=RULE,
        truth=Truth.SCRIPT,
        measured=f"an execution a batch, {1e3 * peak_seconds:.1f} ms at the bfloat16 peak of {evidence.machine.name}",
        place=evidence.first("mark_step"),
        fix="MpDeviceLoader(loader, device, batches_per_execution=10); watch HBM and the time to compile",
        effect="2.6 times the samples/s for a ViT-B/16 on inf2.xlarge",
        effect_is=Effect.PUBLISHED,
        source="the article on ViT, step 6; Neuron's guide to training with PyTorch",
        lost_ratio=0.3,
    )
