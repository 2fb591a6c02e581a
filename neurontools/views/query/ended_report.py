"""The answer to `neuron-ls --ended`: what processes used that have ended, each, by user and by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from neurontools.model import EndedProcess
from neurontools.model.ended import EndedTotal, by_job, by_user
from neurontools.util import units
from neurontools.util.formats import Column, ascii_table, csv_line, foreign_cell, json_text
from neurontools.util.terminal import excerpt
from neurontools.util.units import UNKNOWN, date_text, day_text, rfc3339_text
from neurontools.views.query.document import Format

SCHEMA_VERSION = 1
_COMMAND_CELLS, _WIDE_COMMAND_CELLS, _NAME_CELLS = 40, 80, 32


@dataclass(frozen=True, slots=True)
class EndedReport:
    """What is to be told: the processes that were asked for, oldest first, and of which time they are."""

    processes: Sequence[EndedProcess]
    since_unix_seconds: float  # that was asked for, or since when anything is known
    user: str | None = None  # whose processes were asked for; None: everybody's


@dataclass(frozen=True, slots=True)
class EndedRow:
    """An ended process as the documents name its parts."""

    pid: int
    user: str | None
    uid: int | None
    tag: str
    job: str | None
    command: str
    is_synthetic: bool
    began_at: str
    ended_at: str
    held_seconds: float
    neuroncore_count: int
    is_neuroncore_count_inferred: bool
    logical_neuroncore_config: int
    neuron_devices: tuple[int, ...]
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    flop_total: int | None
    peak_device_memory_bytes: int | None
    executions_completed_total: int | None
    executions_failed_total: int | None
    errors_total: int | None
    steps_total: int | None
    exit_status: int | None
    lives_on: bool


@dataclass(frozen=True, slots=True)
class EndedSum:
    """What the processes of a user or a job used together."""

    name: str | None
    process_count: int
    failed_count: int
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    peak_device_memory_bytes: int | None
    executions_completed_total: int | None
    executions_failed_total: int | None
    errors_total: int | None
    last_ended_at: str


def ended_row(process: EndedProcess) -> EndedRow:
    """The row of a process."""
    executions = process.executions
    return EndedRow(
        pid=process.pid,
        user=process.user,
        uid=process.uid,
        tag=process.tag,
        job=process.job,
        command=process.command,
        is_synthetic=process.synthetic,
        began_at=rfc3339_text(process.began_at_unix_seconds),
        ended_at=rfc3339_text(process.ended_at_unix_seconds),
        held_seconds=round(process.held_seconds, 3),
        neuroncore_count=process.neuroncore_count,
        is_neuroncore_count_inferred="neuroncore_count" in process.inferred_fields,
        logical_neuroncore_config=process.logical_neuroncore_config,
        neuron_devices=process.device_indices,
        neuroncore_hours=process.neuroncore_hours,
        utilization_ratio=process.utilization_ratio,
        mfu_ratio=process.mfu_ratio,
        flop_total=process.flop_total,
        peak_device_memory_bytes=process.peak_device_memory_bytes,
        executions_completed_total=None if executions is None else executions.completed_total,
        executions_failed_total=process.failed_executions_total,
        errors_total=process.errors_total,
        steps_total=process.steps_total,
        exit_status=process.exit_status,
        lives_on=process.lives_on,
    )


def ended_sum(total: EndedTotal) -> EndedSum:
    """The row of a sum."""
    return EndedSum(
        total.name,
        total.process_count,
        total.failed_count,
        total.neuroncore_hours,
        total.utilization_ratio,
        total.mfu_ratio,
        total.peak_device_memory_bytes,
        total.executions_completed_total,
        total.failed_executions_total,
        total.errors_total,
        rfc3339_text(total.last_ended_at_unix_seconds),
    )


def ended_json(report: EndedReport) -> str:
    """A JSON object: the processes, oldest first, and sums by user and by job; null is not known."""
    answer = {
        "schema_version": SCHEMA_VERSION,
        "since": rfc3339_text(report.since_unix_seconds),
        "processes": [asdict(ended_row(process)) for process in report.processes],
        "users": [asdict(ended_sum(total)) for total in by_user(report.processes)],
        "jobs": [asdict(ended_sum(total)) for total in by_job(report.processes)],
    }
    return json_text(answer, indent=2) + "\n"


def ended_csv(report: EndedReport, form: Format) -> str:
    """A line for each process, oldest first; what is not known is empty, devices are separated by spaces."""
    names = [field.name for field in fields(EndedRow)]
    lines = [csv_line(names)] if form.has_header else []
    for process in report.processes:
        row = ended_row(process)
        lines.append(csv_line(_csv_cell(getattr(row, name)) for name in names))
    return "".join(lines)


def ended_text(report: EndedReport, *, is_wide: bool = False) -> str:
    """Tables for people: the processes, oldest first, then sums."""
    since = date_text(report.since_unix_seconds)
    if not report.processes:
        whose = "" if report.user is None else f" of {excerpt(report.user, _NAME_CELLS)}"
        return f"no process{whose} that held NeuronCores has ended since {since}\n"
    hours = sum(process.neuroncore_hours for process in report.processes)
    count = len(report.processes)
    text = f"{count} ended process{'es' if count > 1 else ''} since {since}: {_hours(hours)} NeuronCore hours\n"
    command_cells = _WIDE_COMMAND_CELLS if is_wide else _COMMAND_CELLS
    columns = (*_PROCESS_COLUMNS, Column(("COMMAND",), lambda row: _foreign(row.command, command_cells)))
    text += ascii_table(columns, [[process] for process in report.processes])
    text += "by user\n" + ascii_table((_name("USER"), *_SUM_COLUMNS), [[row] for row in by_user(report.processes)])
    return text + "by job\n" + ascii_table((_name("JOB"), *_SUM_COLUMNS), [[row] for row in by_job(report.processes)])


_PROCESS_COLUMNS: tuple[Column[EndedProcess], ...] = (
    Column(("ENDED",), lambda row: day_text(row.ended_at_unix_seconds)),
    Column(("HOW",), lambda row: row.how),
    Column(("PID",), lambda row: f"{row.pid}{' (synthetic)' if row.synthetic else ''}"),
    Column(("USER",), lambda row: _foreign(row.user, _NAME_CELLS)),
    Column(("JOB",), lambda row: _foreign(row.job, _NAME_CELLS)),
    Column(
        ("CORES",),
        lambda row: f"{row.neuroncore_count}{'?' if 'neuroncore_count' in row.inferred_fields else ''}",
    ),
    Column(("HELD",), lambda row: units.duration_text(row.held_seconds)),
    Column(("CORE", "HOURS"), lambda row: _hours(row.neuroncore_hours)),
    Column(("UTIL",), lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column(("MFU",), lambda row: units.percent_text(row.mfu_ratio, 1)),
    Column(("PEAK", "MEMORY"), lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    Column(
        ("EXECUTIONS",),
        lambda row: units.count_text(None if row.executions is None else row.executions.completed_total),
    ),
    Column(("ERRORS",), lambda row: units.count_text(_trouble(row.failed_executions_total, row.errors_total))),
)

_SUM_COLUMNS: tuple[Column[EndedTotal], ...] = (
    Column(("PROCESSES",), lambda row: str(row.process_count)),
    Column(("FAILED",), lambda row: str(row.failed_count)),
    Column(("CORE HOURS",), lambda row: _hours(row.neuroncore_hours)),
    Column(("UTIL",), lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column(("MFU",), lambda row: units.percent_text(row.mfu_ratio, 1)),
    Column(("PEAK MEMORY",), lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    Column(("EXECUTIONS",), lambda row: units.count_text(row.executions_completed_total)),
    Column(("ERRORS",), lambda row: units.count_text(_trouble(row.failed_executions_total, row.errors_total))),
)


def _name(title: str) -> Column[EndedTotal]:
    return Column((title,), lambda row: _foreign(row.name, _NAME_CELLS))


def _trouble(failed: int | None, errors: int | None) -> int | None:
    return None if failed is None or errors is None else failed + errors


def _foreign(text: str | None, cells: int) -> str:
    return excerpt((text or "")[:400], cells) or UNKNOWN


def _hours(hours: float) -> str:
    return f"{hours:.3f}" if hours < 1 else f"{hours:,.1f}"


def _csv_cell(value: object) -> object:
    if isinstance(value, str):
        return foreign_cell(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value
