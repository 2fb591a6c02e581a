"""From the answer of a Prometheus to jobs over hosts: pure. What it has no series of is unknown, and never 0."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from neurontools.fleet.jobs import FleetJob, SlowFleetRank, StepSeconds
from neurontools.fleet.prometheus import job_queries
from neurontools.fleet.prometheus.overview import label
from neurontools.fleet.prometheus.server import Sample
from neurontools.model import Severity
from neurontools.model.jobs import JobState

_Values = dict[str, float]
_HIGHEST_COUNT = 2**31


def jobs(samples: tuple[Sample, ...], names: Mapping[str, str]) -> tuple[FleetJob, ...]:
    """The jobs, those with most cores first; `names` are those of the hosts, by instance."""
    values: dict[tuple[str, str, str], _Values] = {}
    titles: dict[tuple[str, str, str], str] = {}
    slow: dict[str, Sample] = {}
    for sample in samples:
        labels, of = sample.labels, sample.labels.get(job_queries.OF, "")
        run_id = labels.get("run_id", "")
        if not isfinite(sample.value) or sample.value < 0:
            continue
        if of == job_queries.SLOW_RANK:
            slow[run_id] = sample
            continue
        key = (run_id, "", "") if run_id else ("", labels.get("instance", ""), labels.get("job_name", ""))
        values.setdefault(key, {})[of] = sample.value
        if of == "ranks":
            titles[key] = label(labels.get("job_name", ""))
    found = [_job(key, title, values[key], slow.get(key[0]), names) for key, title in titles.items()]
    whole = [job for job in found if job is not None]
    return tuple(sorted(whole, key=lambda job: (-job.neuroncore_count, job.name, job.run_id or "", job.host_names)))


def job_count(samples: tuple[Sample, ...]) -> int:
    """How many jobs there are; more may be than are told."""
    counts = [sample.value for sample in samples if sample.labels.get(job_queries.OF) == job_queries.JOB_COUNT]
    return int(counts[0]) if counts and 0 <= counts[0] < _HIGHEST_COUNT else 0


def _job(
    key: tuple[str, str, str], name: str, values: _Values, slow: Sample | None, names: Mapping[str, str]
) -> FleetJob | None:
    """None where ranks or cores are not told: it has begun or ended just now."""
    run_id, instance, _ = key
    ranks, cores = _count(values, "ranks"), _count(values, "neuroncores")
    if ranks is None or cores is None:
        return None
    host_names = () if run_id else (names.get(instance, label(instance)),)
    place = _count(values, "state")
    state = job_queries.STATES[place] if place is not None and place < len(job_queries.STATES) else JobState.UNKNOWN
    severity = _count(values, "severity")
    step = values.get("step_seconds")
    return FleetJob(
        name=name,
        run_id=label(run_id) or None,
        host_names=host_names,
        host_count=len(host_names) or _count(values, "hosts"),
        neuroncore_count=cores,
        rank_count=ranks,
        world_size=_count(values, "world_size"),
        missing_ranks=(),
        state=state,
        state_seconds=values.get("since_step") if state in (JobState.TRAINING, JobState.WAITING) else None,
        utilization_ratio=None,
        steps_per_second=values.get("steps_per_second"),
        mfu_ratio=values.get("mfu"),
        step_seconds=None if step is None else StepSeconds(None, step, None),
        slow_rank=None if slow is None else _slow_rank(slow, step, names),
        standstill=None,
        severity=Severity(severity) if severity is not None and severity <= max(Severity) else None,
    )


def _count(values: _Values, name: str) -> int | None:
    value = values.get(name)
    return int(value) if value is not None and value < _HIGHEST_COUNT else None


def _slow_rank(sample: Sample, step_seconds: float | None, names: Mapping[str, str]) -> SlowFleetRank | None:
    """None where it can't be told whom it is of, or what a step is."""
    rank, instance = sample.labels.get("rank", ""), sample.labels.get("instance", "")
    if step_seconds is None or not (rank.isascii() and rank.isdecimal() and len(rank) < 8):
        return None
    return SlowFleetRank(
        rank=int(rank),
        host_name=names.get(instance, label(instance)),
        pid=None,
        part=None,
        gain_seconds=sample.value * step_seconds,
        gain_ratio=sample.value,
    )
