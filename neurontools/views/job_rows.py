"""Jobs as rows of a list: one row for a job, its processes below it where it is open, and those that are alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.model.finding import Kind
from neurontools.model.jobs.running_job import Rank, RunningJob
from neurontools.views.drawing.figures import Figures
from neurontools.views.entry import Entry


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job (`rank` None), or one process: alone, or below its job."""

    key: str  # unique in the list, and the same from one moment to the next
    job: RunningJob
    ranks: tuple[Rank, ...]  # of the job, those that are listed; of a process that one
    rank: Rank | None = None
    is_below: bool = False
    is_open: bool = False

    @property
    def pid(self) -> int | None:
        """The process, if it is one."""
        return None if self.rank is None else self.rank.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, or all listed processes of the job."""
        return tuple([rank.process.pid for rank in self.ranks])

    @property
    def device_indices(self) -> tuple[int, ...]:
        """The devices whose cores it holds."""
        return self.job.device_indices if self.rank is None else self.rank.process.device_indices


def job_key(job: RunningJob) -> str:
    """The key of its row."""
    return f"job {job.name}"


def rows_of(job: RunningJob, ranks: Sequence[Rank], *, is_open: bool) -> list[JobRow]:
    """The rows of those processes of a job that are to be listed; a single one is a row by itself."""
    is_folder = len(ranks) > 1
    rows = [JobRow(job_key(job), job, tuple(ranks), is_open=is_open)] if is_folder else []
    if is_open or not is_folder:
        rows += [JobRow(str(rank.process.pid), job, (rank,), rank, is_below=is_folder) for rank in ranks]
    return rows


def entries_of(rows: Sequence[JobRow], figures: Figures) -> list[Entry]:
    """What a search sees of them: a job by its name, and by its processes while they have no rows of their own."""
    return [
        Entry(
            row.key,
            row.job.name or "" if row.rank is None else "",
            () if row.is_open else tuple([figures.by_pid[pid] for pid in row.pids]),
            (job_key(row.job),) if row.is_below else (),
        )
        for row in rows
    ]


def rank_name(rank: Rank) -> str:
    """What a rank is called among the others."""
    return f"PID {rank.process.pid}" if rank.number is None else f"rank {rank.number}"


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank that the others of its job wait for, and the part of its steps that takes longer; None: all a little."""

    rank: Rank
    part: str | None  # as in STEP_PARTS


def slowest(job: RunningJob) -> SlowestRank | None:
    """The rank that the others wait for, as the daemon has found; None: none, or nobody has looked."""
    for finding in job.findings:
        if finding.kind == Kind.SLOW_RANK:
            return next(
                (SlowestRank(rank, finding.part) for rank in job.ranks if rank.process.pid == finding.pid), None
            )
    return None


def slowest_text(job: RunningJob) -> str:
    """Who of a job is stuck, else who is slowest, and why if that is known; "-" for nobody."""
    for finding in job.findings:
        if finding.kind == Kind.STUCK:
            stuck = next((rank for rank in job.ranks if rank.process.pid == finding.pid), None)
            return "stuck" if stuck is None else f"{rank_name(stuck)} stuck"
    found = slowest(job)
    return "-" if found is None else " ".join(filter(None, (rank_name(found.rank), found.part)))
