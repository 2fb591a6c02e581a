"""A process that held NeuronCores and has ended: what it used, and sums of that by user and job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from neurontools.model.brief import showing
from neurontools.model.execution import ErrorCounters, ExecutionCounters

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that has ended, or has let its NeuronCores go, and what it used while it held them.

    What it counts goes back to when it began to count, whichever daemon it was attached to. A process that attaches
    again after it has let its cores go is one of these for each time.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # its beginning; "" when it could not be read
    tag: str
    job: str | None  # "Slurm job 17", "pod default/train-0", "process group 4711"
    synthetic: bool
    began_at_unix_seconds: float
    ended_at_unix_seconds: float
    neuroncore_count: int  # logical, under its own LNC
    logical_neuroncore_config: int
    device_indices: tuple[int, ...] = ()
    busy_seconds_total: float | None = None  # summed over its logical cores
    flop_total: int | None = None
    utilization_ratio: float | None = None  # of the time of its cores
    mfu_ratio: float | None = None  # of the peak for catalog.PEAK_DTYPE of its cores
    peak_device_memory_bytes: int | None = None  # the most that was seen
    executions: ExecutionCounters | None = None
    errors: ErrorCounters | None = None
    steps_total: int | None = None  # calls of an optimizer's step
    exit_status: int | None = None  # as subprocess has it: a code, or the negative number of a signal
    lives_on: bool = False  # the process went on, without cores
    inferred_fields: tuple[str, ...] = ()  # as in Process: neuroncore_count

    __repr__ = showing("pid", "user", "command", "neuroncore_count", "exit_status")

    @property
    def held_seconds(self) -> float:
        """How long it held its cores."""
        return max(0.0, self.ended_at_unix_seconds - self.began_at_unix_seconds)

    @property
    def neuroncore_hours(self) -> float:
        """Hours of logical NeuronCores that it held."""
        return self.neuroncore_count * self.held_seconds / SECONDS_PER_HOUR

    @property
    def failed_executions_total(self) -> int | None:
        """Executions that did not complete; None: not known."""
        return None if self.executions is None else _sum(self.executions) - self.executions.completed_total

    @property
    def errors_total(self) -> int | None:
        """Errors of every kind; None: not known."""
        return None if self.errors is None else _sum(self.errors)

    @property
    def how(self) -> str:
        """How it ended, in a few words: "ok", "exit 7", "signal 9", "let go"; "-" where nobody knows."""
        if self.lives_on:
            return "let go"
        status = self.exit_status
        if status is None:
            return "-"
        return "ok" if status == 0 else f"exit {status}" if status > 0 else f"signal {-status}"


@dataclass(frozen=True, slots=True)
class EndedTotal:
    """What several ended processes used together; a mean is by NeuronCore hours, of those where it is known."""

    name: str | None  # the user or the job; None: not known
    process_count: int
    failed_count: int  # ended with another code than 0, or by a signal
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    peak_device_memory_bytes: int | None  # of one process
    executions_completed_total: int | None
    failed_executions_total: int | None
    errors_total: int | None
    last_ended_at_unix_seconds: float


def by_user(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """A sum for each user, the largest use first."""
    return _totals(ended, lambda process: process.user if process.uid is None else process.user or str(process.uid))


def by_job(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """A sum for each job, the largest use first; processes of no known job are together."""
    return _totals(ended, lambda process: process.job)


def _totals(ended: Iterable[EndedProcess], name_of: Callable[[EndedProcess], str | None]) -> list[EndedTotal]:
    groups: dict[str | None, list[EndedProcess]] = {}
    for process in ended:
        groups.setdefault(name_of(process), []).append(process)
    sums = [_total(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda total: (-total.neuroncore_hours, total.name or ""))


def _total(name: str | None, group: list[EndedProcess]) -> EndedTotal:
    completed = [process.executions.completed_total for process in group if process.executions is not None]
    return EndedTotal(
        name=name,
        process_count=len(group),
        failed_count=sum(1 for process in group if process.exit_status),
        neuroncore_hours=sum(process.neuroncore_hours for process in group),
        utilization_ratio=_mean(group, lambda process: process.utilization_ratio),
        mfu_ratio=_mean(group, lambda process: process.mfu_ratio),
        peak_device_memory_bytes=max(_known(process.peak_device_memory_bytes for process in group), default=None),
        executions_completed_total=sum(completed) if completed else None,
        failed_executions_total=_sum_known(process.failed_executions_total for process in group),
        errors_total=_sum_known(process.errors_total for process in group),
        last_ended_at_unix_seconds=max(process.ended_at_unix_seconds for process in group),
    )


def _mean(group: list[EndedProcess], read: Callable[[EndedProcess], float | None]) -> float | None:
    known = [(value, process.neuroncore_hours) for process in group if (value := read(process)) is not None]
    hours = sum(part for _, part in known)
    return sum(value * part for value, part in known) / hours if hours > 0 else None


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = _known(values)
    return sum(known) if known else None


def _sum(counters: ExecutionCounters | ErrorCounters) -> int:
    return sum(getattr(counters, field.name) for field in fields(counters))
