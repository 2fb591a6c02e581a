"""Families of jobs: how many there are, and what a host tells of its ranks of them, to be joined over hosts by run.

Prometheus has a label `job` of its own, of targets; ours is `job_name`, as with findings.
"""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.model import Snapshot
from neurontools.model.jobs.job_state import doing
from neurontools.model.jobs.running_job import RunningJob, jobs
from neurontools.model.training import WAIT_PART

_MOST_JOBS = 32  # those with most cores; each has nine series, and one more a rank
_JOB = ("job_name", "run_id")


def _gauge(name: str, text: str) -> Definition:
    return Definition(f"neurontools_job_{name}", Kind.GAUGE, text)


JOBS = Definition("neurontools_jobs", Kind.GAUGE, "Jobs on this host; a process of which none is known is one")
RANKS = _gauge("ranks", "Ranks of the job on this host")
WORLD_SIZE = _gauge("world_size", "Ranks of the job on all hosts")
MISSING = _gauge("missing_ranks", "Ranks that the launcher started on this host and that hold no cores")
CORES = _gauge("neuroncores", "NeuronCores that the job holds on this host")
STATE = _gauge("state", "1 for what the job does: training, starting, compiling, waiting, stuck, unknown")
SINCE_STEP = _gauge("seconds_since_last_step", "Time since all ranks on this host had ended a step")
STEPS = _gauge("steps_per_second", "Optimizer steps a second of the slowest rank on this host")
STEP = _gauge("step_seconds", "How long the latest steps took, of the median rank on this host")
MFU = _gauge("mfu_ratio", "FLOPS of the job's cores on this host against their peak for bf16")
WAIT = _gauge("rank_collective_wait_seconds", "Seconds of its latest steps that the rank waited for others, a step")
_FAMILIES = (RANKS, WORLD_SIZE, MISSING, CORES, STATE, SINCE_STEP, STEPS, STEP, MFU, WAIT)


def job_families(snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts) -> Iterator[Family]:
    """The number of jobs, and the families of those that have several ranks, on this host or others."""
    samples: dict[Definition, list[Sample]] = {definition: [] for definition in _FAMILIES}
    found = jobs(snapshot)
    yield Family(JOBS, [(label.named()(), len(found))])
    several = [job for job in found if job.name is not None and (job.is_several or not job.is_whole)]
    several.sort(key=lambda job: (-len(job.neuroncore_indices), job.name or ""))
    of_job, of_state = label.named(*_JOB), label.named(*_JOB, "state")
    of_rank = label.named(*_JOB, "rank")
    for job in several[:_MOST_JOBS]:
        who = job.name or "", job.run_id or ""
        text = of_job(*who)
        steps = job.recent_steps
        does = doing(job, snapshot)
        values = (
            (RANKS, len(job.ranks)),
            (WORLD_SIZE, job.world_size),
            (MISSING, len(job.missing_ranks)),
            (CORES, len(job.neuroncore_indices)),
            (SINCE_STEP, job.since_last_step_seconds(snapshot.taken_at_seconds)),
            (STEPS, job.steps_per_second),
            (STEP, None if steps is None else steps.median_step_seconds),
            (MFU, job.mfu_ratio(peak_flops_per_core)),
        )
        for definition, value in values:
            if value is not None:
                samples[definition].append((text, value))
        samples[STATE].append((of_state(*who, does.state), 1))
        samples[WAIT] += [(of_rank(*who, number), wait) for number, wait in _waits(job)]
    for definition in _FAMILIES:
        yield Family(definition, samples[definition])


def _waits(job: RunningJob) -> Iterator[tuple[int, float]]:
    for rank in job.ranks:
        steps = rank.process.recent_steps
        if steps is not None and rank.number is not None:
            yield rank.number, steps.part_seconds[WAIT_PART]
