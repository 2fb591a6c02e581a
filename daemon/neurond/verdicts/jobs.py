"""One finding for a job, in place of one for each of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neurontools.model import Finding, Snapshot
from neurontools.model.jobs.running_job import together


def by_job(found: Iterable[Finding], snapshot: Snapshot) -> Iterator[Finding]:
    """The findings; those of one kind on single processes of a job are one, told of the first of them."""
    jobs: dict[int, str] | None = None
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        if finding.pid is None or finding.job is not None:
            yield finding
            continue
        if jobs is None:
            jobs = _jobs(snapshot)
        job = jobs.get(finding.pid)
        if job is None:
            yield finding
        else:
            alike.setdefault((finding.kind, job), []).append(finding)
    for (_, job), findings in alike.items():
        yield findings[0] if len(findings) == 1 else _one(findings, job)


def _jobs(snapshot: Snapshot) -> dict[int, str]:
    """The name of the job that a process works in, by PID."""
    groups = [(processes[0].job, processes) for processes in together(snapshot.processes)]
    return {process.pid: job.name for job, processes in groups if job is not None for process in processes}


def _one(findings: list[Finding], job: str) -> Finding:
    first = findings[0]
    more = len(findings) - 1
    return replace(
        first,
        severity=max(finding.severity for finding in findings),
        reason=f"{first.reason}; so {'does' if more == 1 else 'do'} {more} more of {job}",
        began_at_unix_seconds=min(finding.began_at_unix_seconds for finding in findings),
        device_indices=tuple(sorted({index for finding in findings for index in finding.device_indices})),
        pids=tuple(sorted({pid for finding in findings for pid in finding.pids})),
        job=job,
    )
