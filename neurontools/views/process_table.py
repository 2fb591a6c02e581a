"""Columns of the process list, and its rows: jobs and processes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from neurontools.model.finding import FindingKind
from neurontools.model.jobs import Rank, RunningJob
from neurontools.model.process import Process, failure_count
from neurontools.util import units
from neurontools.util.process_text import script_text
from neurontools.util.units import ranges_text
from neurontools.views.drawing.figures import Figures, ProcessFigures
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.render_context import SearchEntry

ColumnValue = float | str | None
_RowType = TypeVar("_RowType")
_ERRORS_CELLS, _RATE_CELLS = 5, 7
_USUAL_COMMAND_CELLS, _USUAL_WIDTH = 28, 100


@dataclass(frozen=True, slots=True)
class ProcessColumn:
    """A column of the process list. Filters and sort orders refer to the column by `key`.

    Narrow screens drop columns with the highest `rank` first. `unit` is the unit of values in filters, as in
    `parse_quantity`. For a column of indices, such as cores, `members` returns the indices of a process. A column that
    is not `offered` is shown only if the user selects it.
    """

    key: str
    title: str
    cells: int
    rank: int
    read: Callable[[ProcessFigures], ColumnValue]
    text: Callable[[ProcessFigures], str]
    unit: str = ""
    is_text: bool = False
    about: str = ""
    members: Callable[[ProcessFigures], tuple[int, ...]] | None = None
    offered: bool = True


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.1f}%"


def _models(figures: ProcessFigures) -> str:
    models = figures.process.models
    if not models:
        # An attached process would report its models. For other processes, the number of models is unknown.
        return "0" if figures.process.attached_at_unix_seconds is not None else "-"
    return f"{sum(model.running for model in models)}/{len(models)}"


def cores_text(process: Process) -> str:
    """Returns the held cores of a process as text, with "?" if they are inferred.

    If the cores are unknown, returns the devices that the process has open, such as "ND0-1?".
    """
    if process.neuroncore_indices:
        mark = "?" if "core_indices" in process.inferred_fields else ""
        return ranges_text(process.neuroncore_indices) + mark
    return f"ND{ranges_text(process.device_indices)}?" if process.device_indices else "-"


def _core_count(figures: ProcessFigures) -> int | None:
    return figures.core_count if figures.core_count or not figures.process.device_indices else None


def _latency(quantile: str) -> Callable[[ProcessFigures], float | None]:
    def read(figures: ProcessFigures) -> float | None:
        latency = figures.process.total_latency
        return None if latency is None else float(getattr(latency, f"{quantile}_seconds"))

    return read


def _errors(figures: ProcessFigures) -> int | None:
    return failure_count(figures.failed_executions_total, figures.errors_total)


def _checkpoints(figures: ProcessFigures) -> str:
    text = units.short_count_text(figures.checkpoints_total, 5)
    return text if figures.checkpointing_for_seconds is None else f"{text} +1"


def _workload_name(figures: ProcessFigures) -> str | None:
    """Returns the pod of a process, else its Slurm job, else its container; None if all three are unknown."""
    attribution = figures.process.attribution
    if attribution is None:
        return None
    if attribution.pod_name is not None:
        return f"{attribution.pod_namespace or ''}/{attribution.pod_name}".removeprefix("/")
    if attribution.slurm_job_id is not None:
        return f"job {attribution.slurm_job_id}.{attribution.slurm_step_id or ''}".removesuffix(".")
    container = attribution.container_name or (attribution.container_id[:12] if attribution.container_id else None)
    return container or attribution.pod_uid


_p50, _p99 = _latency("p50"), _latency("p99")


PROCESS_COLUMNS = (
    ProcessColumn("pid", "PID", 8, 0, lambda f: f.pid, lambda f: str(f.pid), about="process ID"),
    ProcessColumn(
        "user", "USER", 9, 2, lambda f: f.process.user, lambda f: printable(f.process.user or "-", 40), "", True, "user"
    ),
    ProcessColumn(
        "tag", "TAG", 14, 1, lambda f: f.process.tag, lambda f: printable(f.process.tag, 80), "", True,
        "NEURON_PROCESS_TAG",
    ),
    ProcessColumn(
        "cores", "CORES", 8, 0, lambda f: min(f.process.neuroncore_indices, default=None),
        lambda f: cores_text(f.process),
        about="logical NeuronCores held; ? where they are inferred, ND0? where only the device is known",
        members=lambda f: f.process.neuroncore_indices,
    ),
    ProcessColumn(
        "count", "HELD", 5, 9, _core_count, lambda f: "-" if _core_count(f) is None else str(_core_count(f)),
        about="how many logical NeuronCores it holds", offered=False,
    ),
    ProcessColumn(
        "device", "DEVICE", 7, 9, lambda f: min(f.process.device_indices, default=None),
        lambda f: ranges_text(f.process.device_indices) or "-",
        about="devices on which it holds cores, or that it has open",
        members=lambda f: f.process.device_indices, offered=False,
    ),
    ProcessColumn(
        "util", "UTIL", 7, 0, lambda f: f.utilization_ratio, lambda f: _percent(f.utilization_ratio), "ratio",
        about="mean utilization of its cores",
    ),
    ProcessColumn(
        "flops", "FLOPS", 8, 6, lambda f: f.flops_per_second,
        lambda f: units.short_flops_text(f.flops_per_second), "flops", about="FLOP a second"
    ),
    ProcessColumn(
        "mfu", "MFU", 7, 5, lambda f: f.mfu_ratio, lambda f: _percent(f.mfu_ratio), "ratio",
        about="FLOPS as a share of the bf16 peak of its cores",
    ),
    ProcessColumn(
        "mem", "DEV MEM", 8, 1, lambda f: f.device_memory_bytes,
        lambda f: units.short_bytes_text(f.device_memory_bytes), "bytes", about="device memory",
    ),
    ProcessColumn(
        "host", "HOST MEM", 9, 8, lambda f: f.host_memory_bytes,
        lambda f: units.short_bytes_text(f.host_memory_bytes), "bytes", about="host memory of the runtime",
    ),
    ProcessColumn(
        "cpu", "CPU", 7, 8, lambda f: f.vcpu_ratio, lambda f: _percent(f.vcpu_ratio), "ratio",
        about="vCPU use; 200% is two busy vCPUs",
    ),
    ProcessColumn(
        "elapsed", "ELAPSED", 8, 9, lambda f: f.elapsed_seconds,
        lambda f: units.short_duration_text(f.elapsed_seconds), "seconds", about="time since its start",
    ),
    ProcessColumn(
        "models", "MODELS", 6, 9,
        lambda f: len(f.process.models) if f.process.models or f.process.attached_at_unix_seconds is not None else None,
        _models, about="models running / loaded"
    ),
    ProcessColumn(
        "execs", "EXEC/S", _RATE_CELLS, 3, lambda f: f.process.executions_per_second,
        lambda f: units.short_rate_text(f.process.executions_per_second, _RATE_CELLS),
        "rate", about="executions a second",
    ),
    ProcessColumn(
        "steps", "STEP/S", _RATE_CELLS, 3, lambda f: f.steps_per_second,
        lambda f: units.short_rate_text(f.steps_per_second, _RATE_CELLS),
        "rate", about="training steps a second",
    ),
    ProcessColumn(
        "requests", "REQ/S", _RATE_CELLS, 2, lambda f: f.requests_per_second,
        lambda f: units.short_rate_text(f.requests_per_second, _RATE_CELLS),
        "rate", about="requests for inference a second",
    ),
    ProcessColumn(
        "reqp99", "REQ P99", 8, 4, lambda f: f.request_p99_seconds,
        lambda f: units.short_duration_text(f.request_p99_seconds), "seconds",
        about="99th percentile of the latency of requests, queue wait included",
    ),
    ProcessColumn(
        "waiting", "WAITING", _RATE_CELLS, 4, lambda f: f.queue_depth,
        lambda f: units.short_count_text(f.queue_depth, _RATE_CELLS), about="requests that wait now",
    ),
    ProcessColumn(
        "checkpoints", "CHECKPTS", 8, 8, lambda f: f.checkpoints_total, _checkpoints,
        about="checkpoints written; +1 while it writes one",
    ),
    ProcessColumn(
        "laststep", "LAST STEP", 9, 6, lambda f: f.since_last_step_seconds,
        lambda f: units.short_duration_text(f.since_last_step_seconds), "seconds",
        about="time since its last training step", offered=False,
    ),
    ProcessColumn(
        "p50", "P50", 8, 7, _p50, lambda f: units.short_duration_text(_p50(f)), "seconds", about="median latency"
    ),
    ProcessColumn(
        "p99", "P99", 8, 4, _p99, lambda f: units.short_duration_text(_p99(f)), "seconds", about="99th percentile"
    ),
    ProcessColumn(
        "errors", "ERR", _ERRORS_CELLS, 4, _errors, lambda f: units.short_count_text(_errors(f), _ERRORS_CELLS),
        about="errors, among them failed executions",
    ),
    ProcessColumn(
        "last", "LAST EXEC", 9, 5, lambda f: f.since_last_execution_seconds,
        lambda f: units.short_duration_text(f.since_last_execution_seconds), "seconds",
        about="time since its last execution",
    ),
)  # fmt: skip


COMMAND = ProcessColumn(
    "command", "COMMAND", 16, 2, lambda f: f.process.command,
    lambda f: script_text(printable(f.process.command)) or "-", "", True,
    "script and its arguments; the whole command line is in the details",
)  # fmt: skip
WHERE = ProcessColumn(
    "where", "WHERE", 24, 6, _workload_name, lambda f: printable(_workload_name(f) or "-", 80), "", True,
    "pod, container or Slurm job",
)  # fmt: skip
EVERY_COLUMN = (*PROCESS_COLUMNS, WHERE, COMMAND)
BY_KEY = {column.key: column for column in EVERY_COLUMN}
_CONDITIONAL_COLUMNS = tuple(
    BY_KEY[key] for key in ("steps", "requests", "reqp99", "waiting", "checkpoints", WHERE.key)
)


def columns_without_values(figures: Iterable[ProcessFigures]) -> frozenset[str]:
    """Returns the keys of the columns that no process has a value for, such as steps, requests and pods."""
    every = tuple(figures)
    left_out = (column for column in _CONDITIONAL_COLUMNS if all(column.read(each) is None for each in every))
    return frozenset(column.key for column in left_out)


def shown_process_columns(
    keys: Sequence[str], width: int, left_out: Container[str] = frozenset()
) -> tuple[list[ProcessColumn], int]:
    """Returns the columns that fit in `width`, and the width left for the command (0: no command).

    `keys` are the columns that the user selected, in order. Without `keys`, all columns are offered. Columns with the
    highest rank are dropped until the others fit. `left_out` are the keys of columns that no row has a value for.
    """
    if keys:
        return _selected_columns(keys, width, left_out)
    columns: list[ProcessColumn] = []
    used = 2  # width of the mark of tagged rows
    for_command = _USUAL_COMMAND_CELLS if width >= _USUAL_WIDTH else COMMAND.cells
    for column in sorted((column for column in EVERY_COLUMN if column.offered), key=lambda column: column.rank):
        cells = for_command if column is COMMAND else column.cells
        if used + cells + 1 <= width and column.key not in left_out:
            columns.append(column)
            used += cells + 1
    if COMMAND not in columns:
        return sorted(columns, key=EVERY_COLUMN.index), 0
    columns.remove(COMMAND)
    return sorted(columns, key=EVERY_COLUMN.index), width - used + for_command + 1


def _selected_columns(keys: Sequence[str], width: int, left_out: Container[str]) -> tuple[list[ProcessColumn], int]:
    columns = [BY_KEY[key] for key in keys if key in BY_KEY and key != COMMAND.key and key not in left_out]
    least = COMMAND.cells if COMMAND.key in keys else 0
    selected, used = [], 2
    for column in sorted(columns, key=lambda column: column.rank):
        if used + column.cells + 1 + least <= width:
            selected.append(column)
            used += column.cells + 1
    return sorted(selected, key=columns.index), width - used if least and width - used >= least else 0


def sort_rows(
    rows: Iterable[_RowType], orders: Iterable[tuple[str, bool]], figures_of: Callable[[_RowType], ProcessFigures]
) -> list[_RowType]:
    """Sorts rows by the columns in `orders`, most significant first, then by PID. Unknown values come last.

    Each of `orders` is the key of a column, and whether to sort it in descending order.
    """
    found = sorted(((figures_of(row), row) for row in rows), key=lambda pair: pair[0].pid)
    for key, is_descending in reversed([order for order in orders if order[0] in BY_KEY]):
        column = BY_KEY[key]
        read = [(column.read(pair[0]), pair) for pair in found]
        known = [(_sortable(value), pair) for value, pair in read if value is not None]
        known.sort(key=lambda one: one[0], reverse=is_descending)
        found = [pair for _, pair in known] + [pair for value, pair in read if value is None]
    return [row for _, row in found]


def _sortable(value: float | str) -> float | str:
    return value.casefold() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of the job or process list: a job if `rank` is None, else a process.

    If `is_below`, the process is listed below the row of its job.
    """

    key: str  # identifies the row; unique in the list and stable between snapshots
    job: RunningJob
    ranks: tuple[Rank, ...]  # the listed processes of the job, or the process itself
    rank: Rank | None = None
    is_below: bool = False
    is_open: bool = False

    @property
    def pid(self) -> int | None:
        """The PID of the process; None if this is the row of a job."""
        return None if self.rank is None else self.rank.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The PIDs of the job's listed processes, or of the single process."""
        return tuple([rank.process.pid for rank in self.ranks])

    @property
    def device_indices(self) -> tuple[int, ...]:
        """Indices of the devices whose cores the job or process holds."""
        return self.job.device_indices if self.rank is None else self.rank.process.device_indices


def job_key(job: RunningJob) -> str:
    return f"job {job.name}"


def job_and_rank_rows(job: RunningJob, ranks: Sequence[Rank], *, is_open: bool) -> list[JobRow]:
    """Returns the row of a job and, if `is_open`, the rows of its processes. A single process gets no job row."""
    is_folder = len(ranks) > 1
    rows = [JobRow(job_key(job), job, tuple(ranks), is_open=is_open)] if is_folder else []
    if is_open or not is_folder:
        rows += [JobRow(str(rank.process.pid), job, (rank,), rank, is_below=is_folder) for rank in ranks]
    return rows


def job_search_entries(rows: Sequence[JobRow], figures: Figures) -> list[SearchEntry]:
    """Returns the rows as search entries. A folded job matches by its name or by any of its processes."""
    return [
        SearchEntry(
            row.key,
            row.job.name or "" if row.rank is None else "",
            () if row.is_open else tuple([figures.by_pid[pid] for pid in row.pids]),
            (job_key(row.job),) if row.is_below else (),
        )
        for row in rows
    ]


def free_cores_text(figures: Figures) -> str:
    free = figures.free.values()
    unknown = sum(each is None for each in free)
    unknown_part = f", {unknown} unknown" if unknown else ""
    return f"{sum(each is True for each in free)} of {len(free)} cores free{unknown_part}"


def rank_name(rank: Rank) -> str:
    """Returns "rank N", or "PID N" if the rank number is unknown."""
    return f"PID {rank.process.pid}" if rank.number is None else f"rank {rank.number}"


@dataclass(frozen=True, slots=True)
class ShownStraggler:
    """The rank that the other ranks of a job wait for.

    `part` is the part of the step that makes this rank slow; None if no single part does.
    """

    rank: Rank
    part: str | None  # name of a part of the step, from STEP_PARTS


def reported_straggler(job: RunningJob) -> ShownStraggler | None:
    """Returns the straggler of a job from the daemon's findings; None if no finding reports a straggler."""
    for finding in job.findings:
        if finding.kind == FindingKind.SLOW_RANK:
            rank = _rank_of(job, finding.pid)
            return None if rank is None else ShownStraggler(rank, finding.part)
    return None


def _rank_of(job: RunningJob, pid: int | None) -> Rank | None:
    return next((rank for rank in job.ranks if rank.process.pid == pid), None)


def straggler_text(job: RunningJob) -> str:
    """Returns the stuck rank of a job, else its straggler with the slow part of the step; "-" if it has neither."""
    for finding in job.findings:
        if finding.kind == FindingKind.STUCK:
            stuck = _rank_of(job, finding.pid)
            return "stuck" if stuck is None else f"{rank_name(stuck)} stuck"
    found = reported_straggler(job)
    return "-" if found is None else " ".join(filter(None, (rank_name(found.rank), found.part)))
