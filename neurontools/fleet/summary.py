"""What a host says of itself to who looks at many hosts: about a kilobyte, and as true as its snapshot.

The fields are those of the messages of the same names in `neuron.proto`. None is unknown, which is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from neurontools.fleet.summary_job import SummaryJob
from neurontools.model import Severity, SourceKind
from neurontools.model.representation import repr_of_fields

MOST_DEVICES = 64  # as the driver has them at most


@dataclass(frozen=True, slots=True)
class DeviceCell:
    """One device, or the place of one that is missing."""

    index: int
    is_present: bool
    severity: int | None  # the gravest of its findings, as in `Severity`; None: its health is not known
    utilization_ratio: float | None  # mean of its cores
    held_neuroncore_count: int | None


@dataclass(frozen=True, slots=True)
class SummaryFinding:
    """One of the gravest things that are wrong; those that are alike are one."""

    kind: str
    severity: Severity
    reason: str  # cut where it is long
    began_at_unix_seconds: float
    device_indices: tuple[int, ...]
    job: str | None
    synthetic: bool


@dataclass(frozen=True, slots=True)
class HostSummary:
    """One host at one moment. NeuronCores are logical, under the host's default LNC.

    A daemon tells all that may be None without a word of it; a Prometheus may have no series of it.
    """

    host_name: str
    instance_type: str
    instance_id: str | None
    ultraserver_id: str | None
    ultraserver_node_index: int | None
    source: SourceKind | None
    synthetic_load: str | None
    driver_version: str | None
    daemon_version: str | None
    sequence: int | None
    taken_at_unix_seconds: float
    taken_at_seconds: float | None  # CLOCK_MONOTONIC of the host
    interval_seconds: float | None
    is_judged: bool  # False: nobody has looked for what is wrong
    critical_count: int  # findings, those that are alike as one
    warning_count: int
    notice_count: int
    findings: tuple[SummaryFinding, ...]  # the gravest first, not all
    devices: tuple[DeviceCell, ...]  # by index
    neuroncore_count: int | None
    held_neuroncore_count: int | None
    busy_neuroncore_count: int | None
    free_neuroncore_count: int | None  # what is neither held nor free is unknown
    utilization_ratio: float | None  # mean of the held cores
    flops_per_second: float | None
    mfu_ratio: float | None  # of the held cores, against the peak for bf16
    device_memory_used_bytes: int | None
    device_memory_bytes: int | None
    process_count: int | None  # that use cores
    job_count: int | None
    jobs: tuple[SummaryJob, ...]  # those with most cores first, not all
    further_users: tuple[str, ...]  # whose its other jobs are, not all where they are many
    user_count: int | None  # of all jobs; None: none is known, or who asks may not see them
    problem_count: int | None  # what the daemon could not read

    __repr__ = repr_of_fields("host_name", "instance_type", "sequence", "critical_count", "warning_count")

    @property
    def severity(self) -> Severity | None:
        """The gravest that was found; None: not known."""
        if not self.is_judged:
            return None
        if self.critical_count:
            return Severity.CRITICAL
        if self.warning_count:
            return Severity.WARNING
        return Severity.NOTICE if self.notice_count else Severity.OK

    @property
    def users(self) -> tuple[str, ...]:
        """Whose its jobs are, as far as that is told: `user_count` may be more."""
        told = [user for job in self.jobs for user in job.users]
        return tuple([user for user in dict.fromkeys((*told, *self.further_users)) if user])

    @property
    def without_users(self) -> HostSummary:
        """The same for who may see no users."""
        jobs = tuple([replace(job, users=(), user_count=None) for job in self.jobs])
        return replace(self, jobs=jobs, further_users=(), user_count=None)

    def check(self) -> None:
        """ValueError for what no host can mean, whoever sent it."""
        for job in self.jobs:
            job.check()
        parts: tuple[HostSummary | SummaryJob | DeviceCell | SummaryFinding, ...]
        parts = (self, *self.jobs, *self.devices, *self.findings)
        numbers = [
            value for part in parts for name in part.__slots__ if isinstance(value := getattr(part, name), float)
        ]
        if not all(map(isfinite, numbers)):
            raise ValueError("it has numbers that are none")
        if len(self.devices) > MOST_DEVICES:
            raise ValueError(f"it has {len(self.devices)} devices")
        if any(cell.severity is not None and cell.severity > max(Severity) for cell in self.devices):
            raise ValueError("it has a severity that there is not")

    @property
    def unknown_neuroncore_count(self) -> int:
        """Cores of which nobody knows whether they are held."""
        known = (self.held_neuroncore_count or 0) + (self.free_neuroncore_count or 0)
        return max(0, (self.neuroncore_count or 0) - known)

    @property
    def steps_per_second(self) -> float | None:
        """Of the largest job that tells them."""
        return next((job.steps_per_second for job in self.jobs if job.steps_per_second is not None), None)
