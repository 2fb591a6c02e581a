"""Who has the cores: a row for each job, its processes when it is unfolded, and those that are alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.model import Severity
from neurontools.model.finding import Kind
from neurontools.model.training import age_seconds
from neurontools.util import units
from neurontools.util.process_text import script_text
from neurontools.util.units import ranges_text
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.line import Line, Page, Run, cell, fit, fit_marked, foreign, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED, load_style
from neurontools.views.job_rows import JobRow, job_key, rows_of, slowest, slowest_text
from neurontools.views.processes.columns import PLACE, cores_text

_LONGEST_NAME, _LEAST_NAME = 44, 18
_LEAST_LINES_WITH_HEADING = 5
_RATE_CELLS = 7


def job_rows(scene: Scene, *, every: bool = False) -> list[JobRow]:
    """The rows of the current tab, with the jobs that are unfolded now, or `every` job unfolded."""
    rows: list[JobRow] = []
    for job in scene.figures.jobs:
        ranks = [rank for rank in job.ranks if scene.pid in (None, rank.process.pid)]
        rows += rows_of(job, ranks, is_open=every or job_key(job) in scene.unfolded)
    return rows


def job_list(scene: Scene, rows: list[JobRow], width: int, height: int, *, with_cursor: bool = True) -> Page:
    """The list in at most `height` lines, titles included, scrolled to the scene's cursor."""
    page = Page()
    if height >= min(_LEAST_LINES_WITH_HEADING, len(rows) + 2) or not rows:
        page.add(_head(scene, rows, width))
    if not rows:
        nobody = "this process holds no NeuronCore" if scene.pid is not None else "nobody holds a NeuronCore"
        page.add(fit_marked(((f"  {nobody}", "dim"),), width))
        return page
    columns = _chosen(scene, rows, width)
    titles: list[Run] = []
    for column, cells in columns:
        titles += [(cell(column.title, cells, right=column.is_number), "column"), (" ", "column")]
    page.add(fit(titles, width, "column"))
    room = max(1, height - len(page.lines))
    cursor = min(scene.cursor, len(rows) - 1) if with_cursor else -1
    top = visible_top(max(0, cursor), scene.top if with_cursor else 0, room, len(rows))
    lines = []
    for position in range(top, min(len(rows), top + room)):
        line = _line(scene, rows[position], columns, width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    if with_cursor:
        page.add_list(lines, len(rows), room, top)
    else:
        page.add(*lines)
    return page


def _head(scene: Scene, rows: list[JobRow], width: int) -> Line:
    jobs = [row.job for row in rows if row.rank is None]
    alone = sum(row.rank is not None and not row.is_below for row in rows)
    parts = []
    if jobs:
        count = sum(len(job.ranks) for job in jobs)
        parts.append(f"{len(jobs)} job{'s' * (len(jobs) > 1)} of {count} processes")
    if alone:
        parts.append(f"{alone} process{'es' * (alone != 1)}")
    free = scene.figures.free.values()
    unknown = sum(each is None for each in free)
    told = f"{sum(each is True for each in free)} of {len(free)} cores free" + (
        f", {unknown} unknown" if unknown else ""
    )
    return heading(scene, "Jobs: " + (", ".join(parts) or "none"), width, told)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cells: int
    need: int  # the lower, the sooner it gets room
    text: Callable[[Scene, JobRow], str]
    style: Callable[[Scene, JobRow], str] | None = None
    is_number: bool = False


def _name(scene: Scene, row: JobRow) -> str:
    mark = "  "
    if row.rank is None:
        mark = scene.glyphs.opened if row.is_open else scene.glyphs.closed
        tags = {rank.process.tag for rank in row.job.ranks}
        tag = f"{foreign(tags.pop(), 80)}, " if len(tags) == 1 else ""
        return mark + tag + foreign(row.job.name or "", 80)
    process = row.rank.process
    tag = "" if process.tag == str(process.pid) else f" {foreign(process.tag, 80)}"
    number = f" rank {row.rank.number}" if row.is_below and row.rank.number is not None else ""
    return f"{mark * (1 + row.is_below)}{process.pid}{number}{tag}"


def _state(scene: Scene, row: JobRow) -> str:
    grave = _gravest(row)
    return {Severity.CRITICAL: scene.glyphs.bad, Severity.WARNING: scene.glyphs.warn}.get(grave, " ")


def _gravest(row: JobRow) -> Severity:
    """Of what was found wrong with a job, or with a process of it: who only waits for another is not to blame."""
    pid = row.pid
    return max(
        (
            finding.severity
            for finding in row.job.findings
            if pid is None or pid == finding.pid or (finding.kind != Kind.STUCK and pid in finding.pids)
        ),
        default=Severity.OK,
    )


def _state_style(_scene: Scene, row: JobRow) -> str:
    return {Severity.CRITICAL: "bad", Severity.WARNING: "warn"}.get(_gravest(row), "text")


def _user(_scene: Scene, row: JobRow) -> str:
    users = row.job.users if row.rank is None else (row.rank.process.user,)
    return "-" if not users or users[0] is None else "several" if len(users) > 1 else foreign(users[0], 40)


def _ranks(_scene: Scene, row: JobRow) -> str:
    if row.rank is not None:
        return ""
    here, world = len(row.job.ranks), row.job.world_size
    return str(here) if world in (None, here) else f"{here}/{world}"


def _cores(scene: Scene, row: JobRow) -> str:
    if row.rank is None and row.job.neuroncore_indices:
        is_inferred = any("core_indices" in rank.process.inferred_fields for rank in row.job.ranks)
        return ranges_text(row.job.neuroncore_indices) + "?" * is_inferred
    figures = scene.figures.of(row.pid or row.job.ranks[0].process.pid)
    return "-" if figures is None else cores_text(figures)


def _utilization(row: JobRow) -> float | None:
    return (row.rank or row.job).utilization_ratio


def _utilization_style(scene: Scene, row: JobRow) -> str:
    ratio = _utilization(row)
    return "dim" if ratio is None else load_style(ratio, scene.thresholds.idle_below_ratio)


def _memory(scene: Scene, row: JobRow) -> str:
    if row.pid is None:
        return units.short_bytes_text(row.job.device_memory_bytes)
    figures = scene.figures.of(row.pid)
    return "-" if figures is None else units.short_bytes_text(figures.device_memory_bytes)


def _steps(_scene: Scene, row: JobRow) -> str:
    return units.short_rate_text((row.rank or row.job).steps_per_second, _RATE_CELLS)


def _executions(_scene: Scene, row: JobRow) -> str:
    per_second = (row.rank.process if row.rank is not None else row.job).executions_per_second
    return units.short_rate_text(per_second, _RATE_CELLS)


def _last(scene: Scene, row: JobRow) -> str:
    at = (row.rank or row.job).last_execution_at_unix_seconds
    return units.short_duration_text(None if at is None else max(0.0, scene.snapshot.taken_at_unix_seconds - at))


def _slowest(_scene: Scene, row: JobRow) -> str:
    """Who of a job is stuck or slowest; of a process, whether it is the one."""
    if row.rank is None:
        return slowest_text(row.job)
    if any(finding.kind == Kind.STUCK and finding.pid == row.pid for finding in row.job.findings):
        return "stuck"
    found = slowest(row.job)
    return " ".join(filter(None, ("slowest", found.part))) if found is not None and row.rank is found.rank else ""


def _slowest_style(_scene: Scene, row: JobRow) -> str:
    return "bad" if any(finding.kind == Kind.STUCK for finding in row.job.findings) else "text"


def _place(scene: Scene, row: JobRow) -> str:
    figures = scene.figures.of(row.pid or row.job.ranks[0].process.pid)
    return "-" if figures is None else PLACE.text(figures)


def _script(scene: Scene, row: JobRow) -> str:
    rank = row.rank or row.job.ranks[0]
    script = script_text(foreign(rank.process.command)) or "-"
    since = (row.rank or row.job).compiling_since_seconds
    missing = row.job.missing_ranks if row.rank is None else ()
    if missing:
        script = f"rank{'s' * (len(missing) > 1)} {ranges_text(missing)} missing: {script}"
    if since is None:
        return script
    return f"compiling {units.short_duration_text(scene.snapshot.taken_at_seconds - since)}: {script}"


def _script_style(_scene: Scene, row: JobRow) -> str:
    is_well = (row.rank or row.job).compiling_since_seconds is None and (row.rank or not row.job.missing_ranks)
    return "text" if is_well else "warn"


def _last_step(scene: Scene, row: JobRow) -> str:
    at = (row.rank or row.job).last_step_at_seconds
    return units.short_duration_text(age_seconds(at, scene.snapshot.taken_at_seconds))


_STATE = _Column("", 1, 0, _state, _state_style)
_NAME = _Column("  JOB", _LEAST_NAME, 0, _name)
_RANKS = _Column("RANKS", 6, 1, _ranks, is_number=True)
_STEPS = _Column("STEP/S", _RATE_CELLS, 2, _steps, is_number=True)
_EXECUTIONS = _Column("EXEC/S", _RATE_CELLS, 3, _executions, is_number=True)
_LAST_STEP = _Column("LAST STEP", 9, 3, _last_step, is_number=True)
_SLOWEST = _Column("SLOWEST", 16, 3, _slowest, _slowest_style)
_PLACE = _Column("WHERE", 20, 4, _place)
_SCRIPT = _Column("SCRIPT", 16, 1, _script, _script_style)
_COLUMNS = (
    _STATE,
    _NAME,
    _Column("USER", 9, 2, _user),
    _RANKS,
    _Column("CORES", 8, 0, _cores, is_number=True),
    _Column("UTIL", 6, 0, lambda _, row: units.percent_text(_utilization(row), 1), _utilization_style, is_number=True),
    _Column("DEV MEM", 8, 1, _memory, is_number=True),
    _STEPS,
    _LAST_STEP,
    _EXECUTIONS,
    _SLOWEST,
    _Column("LAST", 7, 4, _last, is_number=True),
    _PLACE,
    _SCRIPT,
)


def _chosen(scene: Scene, rows: list[JobRow], width: int) -> list[tuple[_Column, int]]:
    """The columns that have something to say and room to say it, with their cells."""
    has_jobs = any(row.rank is None for row in rows)
    has_steps = any(rank.steps_per_second is not None for job in scene.figures.jobs for rank in job.ranks)
    left_out = {
        column.title
        for column, is_used in (
            (_RANKS, has_jobs),
            (_SLOWEST, has_jobs),
            (_STEPS, has_steps),
            (_LAST_STEP, any(job.last_step_at_seconds is not None for job in scene.figures.jobs)),
            (_EXECUTIONS, not has_steps),
            (_PLACE, any(row.job.ranks[0].process.attribution is not None for row in rows)),
        )
        if not is_used
    }
    kept: list[_Column] = []
    used = 0
    for column in sorted(_COLUMNS, key=lambda column: column.need):
        if column.title not in left_out and used + column.cells + 1 <= width:
            kept.append(column)
            used += column.cells + 1
    spare = width - used
    name_cells = _LEAST_NAME + min(spare // 2, _LONGEST_NAME - _LEAST_NAME)
    script_cells = _SCRIPT.cells + spare - (name_cells - _LEAST_NAME)
    cells = {_NAME.title: name_cells, _SCRIPT.title: script_cells}
    kept.sort(key=_COLUMNS.index)
    return [(column, cells.get(column.title, column.cells)) for column in kept]


def _line(scene: Scene, row: JobRow, columns: list[tuple[_Column, int]], width: int) -> Line:
    ranks = row.job.ranks if row.rank is None else (row.rank,)
    base = "text" if any(rank.process.reporting or rank.process.synthetic for rank in ranks) else "dim"
    runs: list[Run] = []
    for column, cells in columns:
        style = column.style(scene, row) if column.style is not None else "text"
        runs += [
            (cell(column.text(scene, row), cells, right=column.is_number), base if style == "text" else style),
            (" ", base),
        ]
    return fit(runs, width)
