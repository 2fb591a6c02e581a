"""Output of neuron-ls for the options `--loop`, `--health` and `--ended`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields

from neurontools.model import EccCounters, EndedProcess, Snapshot, SourceKind
from neurontools.model.health import Verdict, age_seconds, finding_location, fold_equal, sentence, summary
from neurontools.model.process import EndedTotal, failure_count, total_by_job, total_by_user
from neurontools.util import units
from neurontools.util.formats import Column, ascii_table, copy_fields, csv_line, foreign_cell, json_text
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.units import UNKNOWN, clock_text, date_text, day_text, rfc3339_text
from neurontools.views.query_fields import FIELDS, OutputFormat, QueryRow

_GIB = 2**30
SCHEMA_VERSION = 1
_COMMAND_CELLS, _WIDE_COMMAND_CELLS, _NAME_CELLS = 40, 80, 32


@dataclass(frozen=True, slots=True)
class _LoopColumn:
    title: str
    unit: str
    cells: int  # width of the column in characters; 0 for the last column, which is not padded
    text: Callable[[QueryRow], str]


def _number_text(name: str, per: float, decimals: int) -> Callable[[QueryRow], str]:
    read = FIELDS[name].read

    def text(row: QueryRow) -> str:
        value = read(row)
        if not isinstance(value, (int, float)):
            return UNKNOWN
        number = value / per
        return f"{number:.2g}" if 0 < number < 0.5 * 10**-decimals else f"{number:.{decimals}f}"  # 0.00 means none

    return text


def _held_text(row: QueryRow) -> str:
    """Returns a device's numbers of held cores and of all cores: "1/2", or "-/2" if an owner is unknown."""
    if row.device is None:
        return UNKNOWN
    states = [core.is_free for core in row.device_cores]
    return f"{UNKNOWN if None in states else states.count(False)}/{len(states)}"


def _memory_percent_text(row: QueryRow) -> str:
    used = FIELDS["memory.used"].read(row)
    total = row.device.memory_bytes if row.device else None
    return f"{used / total * 100:.0f}" if isinstance(used, (int, float)) and total else UNKNOWN


def _pids_text(row: QueryRow) -> str:
    pids = FIELDS["pids"].read(row)
    return ",".join(map(str, pids)) if isinstance(pids, list) and pids else UNKNOWN


def _ecc_text(row: QueryRow) -> str:
    """Returns the uncorrected and the corrected ECC errors, such as "0/3". Each number is the sum for HBM and SRAM."""
    ecc = row.device.ecc if row.device else EccCounters()
    uncorrected = units.sum_known((ecc.mem_uncorrected_total, ecc.sram_uncorrected_total))
    corrected = units.sum_known((ecc.mem_corrected_total, ecc.sram_corrected_total))
    return "/".join(UNKNOWN if count is None else str(count) for count in (uncorrected, corrected))


_LOOP_COLUMNS = (
    _LoopColumn("time", "h:m:s", 8, lambda row: clock_text(row.snapshot.taken_at_unix_seconds)),
    _LoopColumn("nd", "index", 5, lambda row: str(row.device_index)),
    _LoopColumn("cores", "held", 6, _held_text),
    _LoopColumn("util", "%", 6, _number_text("utilization", 0.01, 1)),
    _LoopColumn("flops", "TFLOPS", 8, _number_text("flops", 1e12, 2)),
    _LoopColumn("mem", "GB", 7, _number_text("memory.used", _GIB, 1)),
    _LoopColumn("mem", "%", 4, _memory_percent_text),
    _LoopColumn("power", "%", 6, _number_text("power", 0.01, 1)),
    _LoopColumn("ecc", "unc/corr", 9, _ecc_text),
    _LoopColumn("health", "", 9, lambda row: row.verdict.severity_name or "unknown"),
    _LoopColumn("pids", "", 0, _pids_text),
)


def loop_header(snapshot: Snapshot) -> str:
    """Returns the header of `--loop`: three lines with the host, the column titles and their units.

    Each line begins with #, so that parsers can skip the header.
    """
    instance = snapshot.instance
    notes = ["simulated"] if snapshot.source is SourceKind.SIMULATED else []
    if snapshot.synthetic_load:
        notes.append(f"synthetic load: {escape_controls(snapshot.synthetic_load[:30])}")
    host_text = f"{escape_controls(instance.instance_id or 'this host')} ({escape_controls(instance.instance_type)})"
    lines = [f"# {host_text}" + (f" [{', '.join(notes)}]\n" if notes else "\n")]
    lines += [
        "#" + _row_text([_pad_cell(column, getattr(column, part)) for column in _LOOP_COLUMNS])[1:]
        for part in ("title", "unit")
    ]
    return "".join(lines)


def loop_rows(rows: Sequence[QueryRow]) -> str:
    """Returns the lines of `--loop` for one snapshot, one per device."""
    return "".join(_row_text([_pad_cell(column, column.text(row)) for column in _LOOP_COLUMNS]) for row in rows)


def _pad_cell(column: _LoopColumn, text: str) -> str:
    return text.rjust(column.cells) if column.cells else text


def _row_text(cells: Sequence[str]) -> str:
    return f"  {' '.join(cells)}".rstrip() + "\n"


def health_text(verdicts: Sequence[Verdict], snapshot: Snapshot) -> str:
    """Returns the text of `--health`: lines such as "device 3: critical: REASON; ACTION", then a summary."""
    unique = {finding.identity: finding for verdict in verdicts for finding in verdict.findings}
    lines = [
        f"{finding_location(finding) or 'host: '}{finding.severity.name.lower()}: {sentence(finding, snapshot)}; "
        f"{finding.action}"
        for finding in fold_equal(unique.values())
    ]
    lines.append(summary(verdicts, snapshot))
    return "".join(escape_controls(line) + "\n" for line in lines)


def health_json(verdicts: Sequence[Verdict], snapshot: Snapshot) -> str:
    """Returns the JSON of `--health`: an array with the verdict on each device; null means unknown.

    If there are findings that concern no device, the last verdict has them and the device index null.
    """
    answer = [
        {
            "device_index": verdict.device_index,
            "severity": verdict.severity_name,
            "healthy": verdict.is_healthy,
            "unknown_reason": verdict.unknown_reason,
            "findings": [
                {
                    **asdict(finding),
                    "severity": finding.severity.name.lower(),
                    "age_seconds": round(age_seconds(finding, snapshot), 3),
                }
                for finding in verdict.findings
            ],
        }
        for verdict in verdicts
    ]
    return json_text(answer, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class EndedReport:
    """The ended processes to report, oldest first, and the start of the reported period."""

    processes: Sequence[EndedProcess]
    since_unix_seconds: float  # start that the user requested, or start of the known history
    user: str | None = None  # report only processes of this user; None: of all users


@dataclass(frozen=True, slots=True)
class EndedRow:
    """An ended process in the output; the field names are the names in JSON and CSV."""

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
    requests_total: int | None
    failed_requests_total: int | None
    tokens_total: int | None
    exit_status: int | None
    lives_on: bool
    counts_are_final: bool | None


@dataclass(frozen=True, slots=True)
class EndedTotalRow:
    """Totals over the ended processes of a user or job; the field names are the names in JSON."""

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
    executions = process.executions
    return copy_fields(
        EndedRow,
        process,
        is_synthetic=process.synthetic,
        began_at=rfc3339_text(process.began_at_unix_seconds),
        ended_at=rfc3339_text(process.ended_at_unix_seconds),
        held_seconds=round(process.held_seconds, 3),
        is_neuroncore_count_inferred="neuroncore_count" in process.inferred_fields,
        neuron_devices=process.device_indices,
        executions_completed_total=None if executions is None else executions.completed_total,
        executions_failed_total=process.failed_executions_total,
    )


def _ended_total_row(total: EndedTotal) -> EndedTotalRow:
    return copy_fields(
        EndedTotalRow,
        total,
        executions_failed_total=total.failed_executions_total,
        last_ended_at=rfc3339_text(total.last_ended_at_unix_seconds),
    )


def ended_json(report: EndedReport) -> str:
    """Returns the JSON of `--ended`: ended processes, oldest first, and totals by user and job; null means unknown."""
    answer = {
        "schema_version": SCHEMA_VERSION,
        "since": rfc3339_text(report.since_unix_seconds),
        "processes": [asdict(ended_row(process)) for process in report.processes],
        "users": [asdict(_ended_total_row(total)) for total in total_by_user(report.processes)],
        "jobs": [asdict(_ended_total_row(total)) for total in total_by_job(report.processes)],
    }
    return json_text(answer, indent=2) + "\n"


def ended_csv(report: EndedReport, form: OutputFormat) -> str:
    """Returns the CSV of `--ended`: a line per ended process, oldest first.

    Unknown values are empty; device indices are separated by spaces.
    """
    lines = [csv_line(field.name for field in fields(EndedRow))] if form.has_header else []
    lines += [csv_line(map(_ended_csv_cell, astuple(ended_row(process)))) for process in report.processes]
    return "".join(lines)


def ended_text(report: EndedReport, *, is_wide: bool = False) -> str:
    """Returns the text of `--ended`: tables of the ended processes, oldest first, and of totals by user and by job."""
    since = date_text(report.since_unix_seconds)
    if not report.processes:
        user_part = "" if report.user is None else f" of {excerpt(report.user, _NAME_CELLS)}"
        return f"no process{user_part} that held NeuronCores has ended since {since}\n"
    hours = sum(process.neuroncore_hours for process in report.processes)
    count = len(report.processes)
    text = f"{count} ended process{'es' if count > 1 else ''} since {since}: {_hours_text(hours)} NeuronCore hours\n"
    command_cells = _WIDE_COMMAND_CELLS if is_wide else _COMMAND_CELLS
    columns = (*_PROCESS_COLUMNS, Column(("COMMAND",), lambda row: _printable(row.command, command_cells)))
    text += ascii_table(columns, [[process] for process in report.processes])
    for title, totals in (("user", total_by_user(report.processes)), ("job", total_by_job(report.processes))):
        names = Column[EndedTotal]((title.upper(),), lambda row: _printable(row.name, _NAME_CELLS))
        text += f"by {title}\n" + ascii_table((names, *_SUM_COLUMNS), [[row] for row in totals])
    if any(process.counts_are_final is False for process in report.processes):
        text += "+ without a final report: the work since the last report is missing\n"
    return text


_PROCESS_COLUMNS: tuple[Column[EndedProcess], ...] = (
    Column(("ENDED",), lambda row: day_text(row.ended_at_unix_seconds)),
    Column(("HOW",), lambda row: row.how),
    Column(("PID",), lambda row: f"{row.pid}{' (synthetic)' if row.synthetic else ''}"),
    Column(("USER",), lambda row: _printable(row.user, _NAME_CELLS)),
    Column(("JOB",), lambda row: _printable(row.job, _NAME_CELLS)),
    Column(("CORES",), lambda row: f"{row.neuroncore_count}{'?' * ('neuroncore_count' in row.inferred_fields)}"),
    Column(("HELD",), lambda row: units.duration_text(row.held_seconds)),
    Column(("CORE", "HOURS"), lambda row: _hours_text(row.neuroncore_hours)),
    Column(("UTIL",), lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column(("MFU",), lambda row: units.percent_text(row.mfu_ratio, 1)),
    Column(("PEAK", "MEMORY"), lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    Column(
        ("EXECUTIONS",),
        lambda row: (
            units.count_text(None if row.executions is None else row.executions.completed_total)
            + "+" * (row.counts_are_final is False)
        ),
    ),
    Column(("ERRORS",), lambda row: units.count_text(failure_count(row.failed_executions_total, row.errors_total))),
)


_SUM_COLUMNS: tuple[Column[EndedTotal], ...] = (
    Column(("PROCESSES",), lambda row: str(row.process_count)),
    Column(("FAILED",), lambda row: str(row.failed_count)),
    Column(("CORE HOURS",), lambda row: _hours_text(row.neuroncore_hours)),
    Column(("UTIL",), lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column(("MFU",), lambda row: units.percent_text(row.mfu_ratio, 1)),
    Column(("PEAK MEMORY",), lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    Column(("EXECUTIONS",), lambda row: units.count_text(row.executions_completed_total)),
    Column(("ERRORS",), lambda row: units.count_text(failure_count(row.failed_executions_total, row.errors_total))),
)


def _printable(text: str | None, cells: int) -> str:
    return excerpt((text or "")[:400], cells) or UNKNOWN


def _hours_text(hours: float) -> str:
    return f"{hours:.3f}" if hours < 1 else f"{hours:,.1f}"


def _ended_csv_cell(value: object) -> object:
    if isinstance(value, str):
        return foreign_cell(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value
