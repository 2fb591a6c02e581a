"""The summary of a host for fleet views: about a kilobyte, derived from one snapshot.

The classes have the fields of the messages with the same names in `neuron.proto`. An unknown value is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite

from neurontools.model import Severity, SourceKind
from neurontools.model.jobs import JobState, JobSteps
from neurontools.model.process import STEP_PARTS
from neurontools.model.representation import repr_of_fields

MOST_DEVICES = 64  # the limit of the driver


@dataclass(frozen=True, slots=True)
class DeviceCell:
    """One device, present or missing."""

    index: int
    is_present: bool
    severity: int | None  # highest `Severity` of the device's findings; None if unknown
    utilization_ratio: float | None  # mean of its cores
    held_neuroncore_count: int | None


@dataclass(frozen=True, slots=True)
class SummaryFinding:
    """One of the gravest findings of a host. Findings of the same kind are combined."""

    kind: str
    severity: Severity
    reason: str  # shortened if long
    began_at_unix_seconds: float
    device_indices: tuple[int, ...]
    job: str | None
    synthetic: bool


@dataclass(frozen=True, slots=True)
class HostSummary:
    """The state of one host at one time. NeuronCores are logical, under the host's default LNC.

    Many fields are None in summaries from Prometheus, because it may lack their series.
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
    taken_at_seconds: float | None  # the same time by the host's CLOCK_MONOTONIC
    interval_seconds: float | None
    is_judged: bool  # if false, the health of the host is unknown
    critical_count: int  # critical findings; similar ones count once
    warning_count: int
    notice_count: int
    findings: tuple[SummaryFinding, ...]  # the gravest findings, possibly not all
    devices: tuple[DeviceCell, ...]  # sorted by index
    neuroncore_count: int | None
    held_neuroncore_count: int | None
    busy_neuroncore_count: int | None
    free_neuroncore_count: int | None  # a core that is neither held nor free is unknown
    utilization_ratio: float | None  # mean of the held cores
    flops_per_second: float | None
    mfu_ratio: float | None  # MFU of the held cores, relative to the bf16 peak
    device_memory_used_bytes: int | None
    device_memory_bytes: int | None
    process_count: int | None  # processes with cores
    job_count: int | None
    jobs: tuple[SummaryJob, ...]  # the jobs with the most cores, possibly not all
    further_users: tuple[str, ...]  # users of jobs that `jobs` lacks, possibly not all
    user_count: int | None  # number of users of all jobs; None if unknown, or if the reader may not see users
    problem_count: int | None  # number of values that the daemon could not read

    __repr__ = repr_of_fields("host_name", "instance_type", "sequence", "critical_count", "warning_count")

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the findings; None if unknown."""
        if not self.is_judged:
            return None
        if self.critical_count:
            return Severity.CRITICAL
        if self.warning_count:
            return Severity.WARNING
        return Severity.NOTICE if self.notice_count else Severity.OK

    @property
    def users(self) -> tuple[str, ...]:
        """The known users of the jobs. `user_count` may be higher."""
        users = [user for job in self.jobs for user in job.users]
        return tuple([user for user in dict.fromkeys((*users, *self.further_users)) if user])

    @property
    def without_users(self) -> HostSummary:
        """A copy without users, for readers that may not see them."""
        jobs = tuple([replace(job, users=(), user_count=None) for job in self.jobs])
        return replace(self, jobs=jobs, further_users=(), user_count=None)

    def check(self) -> None:
        """Raises ValueError for values that no host can have."""
        for job in self.jobs:
            job.check()
        parts: tuple[HostSummary | SummaryJob | DeviceCell | SummaryFinding, ...]
        parts = (self, *self.jobs, *self.devices, *self.findings)
        numbers = [
            value for part in parts for name in part.__slots__ if isinstance(value := getattr(part, name), float)
        ]
        if not all(map(isfinite, numbers)):
            raise ValueError("it has an invalid number")
        if len(self.devices) > MOST_DEVICES:
            raise ValueError(f"it has too many devices ({len(self.devices)})")
        if any(cell.severity is not None and cell.severity > max(Severity) for cell in self.devices):
            raise ValueError("it has an invalid severity")

    @property
    def unknown_neuroncore_count(self) -> int:
        """The number of cores that are neither known to be held nor known to be free."""
        counted = (self.held_neuroncore_count or 0) + (self.free_neuroncore_count or 0)
        return max(0, (self.neuroncore_count or 0) - counted)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of the largest job that reports them."""
        return next((job.steps_per_second for job in self.jobs if job.steps_per_second is not None), None)


MOST_RUNS = 2
_MOST_RANKS_HERE = 1024
_HIGHEST_RANK = 2**20


@dataclass(frozen=True, slots=True)
class JobStandstill:
    """The ranks of a job on one host while at least one of them waits in a collective."""

    collective: str  # the collective in which most of the waiting ranks wait
    waiting_rank_count: int
    absent_rank_count: int  # ranks that have not entered the collective, or do not report
    absent_ranks: tuple[int, ...]  # some or all of the absent ranks
    seconds: float  # waiting time of the rank that began to wait last


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """The part of a job that runs on this host. A summary has only the largest jobs."""

    name: str | None  # None for a process without a known job
    neuroncore_count: int  # logical cores
    rank_count: int  # on this host
    world_size: int | None
    utilization_ratio: float | None
    steps_per_second: float | None
    mfu_ratio: float | None
    severity: Severity  # highest severity of the findings on the job's processes
    run_id: str | None = None  # identifies the job across hosts; None if it is only on this host
    # the ranks on this host, from `encode_rank_runs`; empty if unknown or too scattered
    rank_runs: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()  # ranks that the launcher started here but that are missing; possibly not all
    state: str = JobState.UNKNOWN  # a value of `JobState`, or an unknown value of a newer daemon
    state_seconds: float | None = None  # time in this state; if waiting or training, time since the last step
    recent_steps: JobSteps | None = None  # None if there are too few steps or not all ranks report
    standstill: JobStandstill | None = None  # None if the job trains or no rank waits in a collective
    users: tuple[str, ...] = ()  # owners of the job's processes, possibly not all
    user_count: int | None = None  # number of all owners; None if unknown, or if the reader may not see users

    @property
    def ranks(self) -> frozenset[int] | None:
        """The ranks on this host; None if unknown."""
        runs = zip(self.rank_runs[::3], self.rank_runs[1::3], self.rank_runs[2::3], strict=False)
        found = [rank for first, step, count in runs for rank in range(first, first + step * count, step)]
        return frozenset(found) if found else None

    def check(self) -> None:
        """Raises ValueError for values that no host can have."""
        runs = self.rank_runs
        if len(runs) % 3 or len(runs) > 3 * MOST_RUNS or sum(runs[2::3]) > _MOST_RANKS_HERE or 0 in runs[1::3]:
            raise ValueError("it has invalid ranks")
        steps, standstill = self.recent_steps, self.standstill
        absent = standstill.absent_ranks if standstill is not None else ()
        if any(rank >= _HIGHEST_RANK for rank in (*runs, *self.missing_ranks, *absent)):
            raise ValueError("it has invalid ranks")
        if standstill is not None and not _is_time(standstill.seconds):
            raise ValueError("it has an invalid number")
        if steps is None:
            return
        if not len(steps.part_seconds) == len(steps.busiest.part_seconds) == len(STEP_PARTS):
            raise ValueError("it has other parts of steps; update the older side")
        numbers = [*steps.part_seconds, *steps.busiest.part_seconds]
        for part in (steps, steps.busiest):
            numbers += [value for name in part.__slots__ if isinstance(value := getattr(part, name), float)]
        if not all(map(_is_time, numbers)) or not 0 < steps.rank_count <= _MOST_RANKS_HERE:
            raise ValueError("it has invalid step times")


def _is_time(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0.0


def encode_rank_runs(ranks: Iterable[int | None]) -> tuple[int, ...]:
    """Encodes ranks as (first, step, count) triples. One triple can be a block of 64 ranks, or every eighth rank.

    Returns an empty tuple if a rank is unknown or the ranks are too scattered.
    """
    numbers = set(ranks)
    if None in numbers:
        return ()
    left = sorted(number for number in numbers if number is not None)
    runs: list[int] = []
    while left:
        first = left[0]
        step = left[1] - first if len(left) > 1 else 1
        count = 1
        while count < len(left) and left[count] == first + step * count:
            count += 1
        runs += (first, step, count)
        left = left[count:]
    return tuple(runs) if len(runs) <= 3 * MOST_RUNS else ()
