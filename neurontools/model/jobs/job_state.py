"""What a job does, in a word."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import RunningJob
from neurontools.model.snapshot import Snapshot
from neurontools.model.training import age_seconds

_WAITING_STEPS = 4.0  # steps as long as the latest ones: who has made none for so long does something else
_WAITING_SECONDS = 10.0  # at least: less is no news


class JobState(StrEnum):
    """What is first counts for a job whose ranks differ; a newer daemon may know more."""

    COMPILING = "compiling"
    STUCK = "stuck"
    WAITING = "waiting"  # it has trained, and makes no step: evaluation, a checkpoint, its input, or for other ranks
    STARTING = "starting"  # no step yet
    TRAINING = "training"
    UNKNOWN = "unknown"  # nobody tells its steps


@dataclass(frozen=True, slots=True)
class Doing:
    """A state, and since how many seconds: of training and waiting since the last step; None: not known."""

    state: JobState
    seconds: float | None


def doing(job: RunningJob, snapshot: Snapshot) -> Doing:
    """What a job of this snapshot does."""
    now = snapshot.taken_at_seconds
    since_step = job.since_last_step_seconds(now)
    stuck = [finding.began_at_unix_seconds for finding in job.findings if finding.kind == Kind.STUCK]
    if job.compiling_since_seconds is not None:
        return Doing(JobState.COMPILING, age_seconds(job.compiling_since_seconds, now))
    if stuck:
        return Doing(JobState.STUCK, max(0.0, snapshot.taken_at_unix_seconds - min(stuck)))
    if since_step is None:
        counting = any(rank.process.training is not None for rank in job.ranks)
        return Doing(JobState.STARTING if counting else JobState.UNKNOWN, None)
    steps = job.recent_steps
    patience = max(_WAITING_SECONDS, _WAITING_STEPS * steps.median_step_seconds if steps is not None else 0.0)
    return Doing(JobState.WAITING if since_step >= patience else JobState.TRAINING, since_step)
