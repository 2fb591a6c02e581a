"""Snapshots with the verdicts that a daemon would have made of them."""

from __future__ import annotations

from neurond.verdicts.judge import Judge
from neurond.verdicts.thresholds import Thresholds

from neurontools import health
from neurontools.model import Snapshot


def judged(snapshot: Snapshot, earlier: Snapshot | None = None, limits: Thresholds | None = None) -> Snapshot:
    """The snapshot judged by a daemon that had seen the earlier one too."""
    judge = Judge(limits)
    if earlier is not None:
        judge.judge(earlier)
    return judge.judge(snapshot)


def verdicts(
    snapshot: Snapshot, earlier: Snapshot | None = None, limits: Thresholds | None = None
) -> tuple[health.Verdict, ...]:
    """The verdicts themselves."""
    return health.verdicts(judged(snapshot, earlier, limits))
