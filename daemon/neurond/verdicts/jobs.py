"""One finding for a job, in place of one for each of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neurontools.model import Finding, Snapshot


def by_job(found: Iterable[Finding], snapshot: Snapshot) -> Iterator[Finding]:
    """The findings; those of one kind on single processes of a job are one, told of the first of them."""
    jobs: dict[int, str] | None = None
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        if finding.pid is None or finding.job is not None:
            yield finding
            continue
        if jobs is None:
            jobs = {process.pid: process.job.name for process in snapshot.processes if process.job is not None}
        job = jobs.get(finding.pid)
        if job is None:
            yield finding
        else:
            together.setdefault((finding.kind, job), []).append(finding)
    for (_, job), findings in together.items():
        yield findings[0] if len(findings) == 1 else _one(findings, job)


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
