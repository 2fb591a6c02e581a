"""Snapshots with the verdicts that a daemon would have made of them."""

from __future__ import annotations

from neurond.verdicts.judge import Judge
from neurond.verdicts.thresholds import Thresholds

from neurontools import health
from neurontools.model import Finding, Snapshot


def findings(judge: Judge, snapshot: Snapshot, *kinds: str) -> list[Finding]:
    """What this judge finds in the next snapshot, of these kinds or of all."""
    judged = judge.judge(snapshot).health
    assert judged is not None
    return [finding for finding in judged.findings if not kinds or finding.kind in kinds]


def verdicts(
    snapshot: Snapshot, earlier: Snapshot | None = None, limits: Thresholds | None = None
) -> tuple[health.Verdict, ...]:
    """The verdicts of a daemon that had seen the earlier snapshot too."""
    judge = Judge(limits)
    if earlier is not None:
        judge.judge(earlier)
    return health.verdicts(judge.judge(snapshot))
