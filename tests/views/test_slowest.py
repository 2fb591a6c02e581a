"""Who of a job is shown as the rank that the others wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.health import Kind
from neurontools.model import Finding, Health, Process, Severity
from neurontools.model.attribution import Job
from neurontools.model.jobs.running_job import RunningJob, jobs
from neurontools.views.job_rows import slowest_text
from tests.harness.snapshots import process_of, snapshot_of


def rank(number: int) -> Process:
    return replace(process_of(100 + number, "python train.py", (0,)), job=Job("Slurm job 7", number, 2))


def job_with(*findings: Finding) -> RunningJob:
    (job,) = jobs(replace(snapshot_of("trn1.32xlarge", [rank(0), rank(1)]), health=Health(findings=findings)))
    return job


def slow(pid: int, part: str | None) -> Finding:
    return Finding(Kind.SLOW_RANK, Severity.NOTICE, "reason", "action", 0.0, (0,), pid, (100, 101), part=part)


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        ((), "-"),
        ((slow(101, "input wait"),), "rank 1 input wait"),
        ((slow(100, None),), "rank 0"),
        ((slow(101, "host"), replace(slow(100, None), kind=Kind.STUCK)), "rank 0 stuck"),
        ((slow(100, "host"), Finding(Kind.IDLE, Severity.NOTICE, "reason", "action", 0.0, (0,), 101)), "rank 0 host"),
    ],
)
def test_the_rank_of_the_finding_is_shown_and_one_that_is_stuck_first(findings: tuple[Finding, ...], text: str) -> None:
    assert slowest_text(job_with(*findings)) == text
