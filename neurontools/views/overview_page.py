"""The overview page: cores, jobs, vCPUs, memory and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from neurontools.model import Severity
from neurontools.model.finding import FindingKind
from neurontools.model.process import age_seconds, split_job_name
from neurontools.util import units
from neurontools.util.process_text import script_text
from neurontools.util.units import ranges_text, sum_known
from neurontools.views.consumption import power_mark
from neurontools.views.drawing.core_grid import core_grid, grid_layout, grid_rows
from neurontools.views.drawing.glyphs import stacked_bar
from neurontools.views.drawing.heat_scale import load_style
from neurontools.views.drawing.lines import (
    Line,
    Run,
    TextPage,
    cell,
    clip,
    fit,
    fit_marked,
    printable,
    width_of,
)
from neurontools.views.drawing.render_context import (
    OVERVIEW_PANELS,
    SEVERITY_STYLES,
    RenderContext,
    SearchEntry,
    add_scrolled_list,
    heading,
    severity_mark,
)
from neurontools.views.findings_panel import finding_lines
from neurontools.views.history_panel import LEAST_LINES, history_panel
from neurontools.views.host_page import traffic_texts, user_and_system_ratios
from neurontools.views.memory_sections import (
    memory_line,
    memory_summary,
    memory_tree,
    tree_entries,
    visible_nodes,
)
from neurontools.views.process_table import (
    WHERE,
    JobRow,
    cores_text,
    free_cores_text,
    job_and_rank_rows,
    job_key,
    job_search_entries,
    reported_straggler,
    straggler_text,
)

_SIDE_BY_SIDE_CELLS = 110
_RICH_LINES = 34
_USUAL_HISTORY_LINES = 12  # the long memory summary appears only if the history has more lines
_RICH_SUMMARY_LINES, _SUMMARY_LINES = 8, 3
_LEAST_LIST_LINES = 4
_LEAST_GRID_LINES = 4
_LEAST_TREE_LINES = 4
_COMPACT_GRID_LINES = 3
_LINES_FOR_ALL = 44  # screens with at least this many lines show both the jobs and the open memory tree
_USAGE_LABEL_CELLS = 20
_HEADING_CELLS = 26  # terminal cells reserved for the text and rule of the vCPU heading
_Ratios = tuple[float | None, float | None]  # user share and system share of vCPU time
_LONGEST_NAME, _LEAST_NAME = 44, 20
_LEAST_LINES_WITH_HEADING = 5
_RATE_CELLS = 7


def overview_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the overview page: findings, cores, jobs, vCPUs, memory, and the history in the lines that are left.

    Low screens drop the history, then memory and vCPUs. Findings and jobs keep a part of every screen. The layout
    "compact" gives the room to the jobs. "classic" has only the panels of AWS's neuron-top. `context.panels` selects
    and orders the panels of the other two.
    """
    if context.is_tree_shown:
        return _page_with_tree(context, width, height)
    findings = finding_lines(context, width, height // 4)
    panels = context.panels or OVERVIEW_PANELS
    room = height - len(findings)
    places = grid_rows(context)
    rows = job_rows(context)
    list_lines = max(2, len(rows) + 2) if "jobs" in panels else 0
    grid_lines = 1 + len(places) if "cores" in panels else 0
    if context.layout == "compact":
        grid_lines = min(grid_lines, _COMPACT_GRID_LINES)
    cores_per_device = len(context.figures.cores) // max(1, len(context.snapshot.devices))
    tightest = 1 + grid_layout(len(places), cores_per_device, width, 1).rows
    least = min(list_lines, _LEAST_LIST_LINES) + min(grid_lines, max(tightest, _LEAST_GRID_LINES))
    drawn = _summary_panels(context, width, room - list_lines - grid_lines)
    drawn = {name: part for name, part in drawn.items() if name in panels}
    while drawn and room - _line_count(drawn.values()) < least:
        drawn.popitem()
    room -= _line_count(drawn.values())
    if grid_lines:
        for_list = min(list_lines, max(_LEAST_LIST_LINES, room // 2))
        grid_lines = max(1, min(grid_lines, room - for_list))
        selected = rows[min(context.cursor, len(rows) - 1)] if rows and context.cursor >= 0 else None
        lit = frozenset(selected.device_indices) if selected is not None and list_lines else frozenset()
        if len(lit) == len(context.snapshot.devices):
            lit = frozenset()  # if all devices were highlighted, none would stand out
        drawn["cores"] = core_grid(context, width, grid_lines, places, lit_devices=lit)
        room -= len(drawn["cores"].lines)
    if list_lines and room >= 2:
        drawn["jobs"] = job_list_section(context, rows, width, min(room, list_lines))
    left = height - len(findings) - _line_count(drawn.values())
    if left >= LEAST_LINES and _has_history(context):
        drawn["history"] = history_panel(context, width, left)
    elif left > 0:
        findings = finding_lines(context, width, len(findings) + left)
    page = TextPage(findings)
    for name in dict.fromkeys(panels):
        if name in drawn:
            page.append_page(drawn[name])
    return page


def _summary_panels(context: RenderContext, width: int, spare: int) -> dict[str, TextPage]:
    """Draws the panels of vCPUs and memory. `spare` is the number of lines that cores and jobs leave."""
    if context.layout == "compact":
        return {"vcpus": TextPage([vcpu_line(context, width)]), "memory": TextPage([memory_line(context, width)])}
    is_rich = spare >= _RICH_SUMMARY_LINES + 3 + (_USUAL_HISTORY_LINES if _has_history(context) else 0)
    return {
        "vcpus": vcpu_section(context, width, side_by_side=width >= _SIDE_BY_SIDE_CELLS),
        "memory": memory_summary(context, width, _RICH_SUMMARY_LINES if is_rich else _SUMMARY_LINES),
    }


def _has_history(context: RenderContext) -> bool:
    """Returns whether the page may show the history: only the full layout of the interactive neuron-top does."""
    if "history" not in (context.panels or OVERVIEW_PANELS):
        return False
    return context.series is not None and context.has_keys and context.layout == "full"


def overview_entries(context: RenderContext, every: bool) -> list[SearchEntry]:
    """Returns the rows of the job list, or of the open memory tree, as search entries.

    `every` includes rows that are folded away.
    """
    if context.is_tree_shown:
        return tree_entries(context, every)
    return job_search_entries(job_rows(context, every=every), context.figures)


def _page_with_tree(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the overview page with the open memory tree. Only high screens have room for the jobs, too."""
    places, rows = grid_rows(context), visible_nodes(context)
    selected = rows[min(context.cursor, len(rows) - 1)].device_index if rows and context.cursor >= 0 else None
    middle = [
        vcpu_section(context, width, side_by_side=width >= _SIDE_BY_SIDE_CELLS),
        memory_summary(context, width, _RICH_SUMMARY_LINES if height >= _RICH_LINES else _SUMMARY_LINES),
    ]
    while middle and height - _line_count(middle) < _LEAST_TREE_LINES + _LEAST_GRID_LINES:
        middle.pop()
    room = height - _line_count(middle)
    grid_lines = max(1, min(1 + len(places), room - max(_LEAST_TREE_LINES, room * 2 // 5)))
    page = core_grid(context, width, grid_lines, places, selected_device=selected)
    if context.layout == "classic":
        pass  # AWS's neuron-top lists no jobs
    elif height >= _LINES_FOR_ALL:
        jobs = job_rows(context)
        page.append_page(
            job_list_section(context, jobs, width, max(2, min(len(jobs) + 2, room // 5)), with_cursor=False)
        )
    else:
        page.add_lines(_job_list_heading(context, job_rows(context), width, context.key_hint("x: list")))
    for part in middle:
        page.append_page(part)
    if height - len(page.lines) >= 2:
        page.append_page(memory_tree(context, width, height - len(page.lines)))
    return page


def _line_count(parts: Iterable[TextPage]) -> int:
    return sum(len(part.lines) for part in parts)


def vcpu_section(context: RenderContext, width: int, *, side_by_side: bool = False) -> TextPage:
    """Draws the vCPU usage of the host and of the Neuron processes as bars of user and system time."""
    system, runtime = _vcpu_ratios(context)
    about, hint = _usage_summary(context, width), context.key_hint(", H: host")
    if len(about) + len(hint) + _HEADING_CELLS <= width:
        about = f"{about}{hint}".removeprefix(", ")
    page = TextPage([heading(context, "vCPU Utilization", width, about)])
    half = width // 2 if side_by_side else width
    first = fit(_usage_bar(context, "System vCPU Usage", system, half), half)
    second = fit(_usage_bar(context, "Runtime vCPU Usage", runtime, width - half if side_by_side else width), half)
    page.add_lines(*([fit((*first, *second), width)] if side_by_side else [first, second]))
    return page


def _usage_summary(context: RenderContext, width: int) -> str:
    """Returns vCPU count, traffic rates and power as text; leaves out what does not fit beside the vCPU heading."""
    host = context.snapshot.host
    parts = [f"{host.vcpu_count} vCPUs"] if host.vcpu_count else []
    for text in (*traffic_texts(host), *_power_texts(context)):
        if sum(map(len, (*parts, text))) + 3 * len(parts) + _HEADING_CELLS <= width:
            parts.append(text)
    return ", ".join(parts)


def _power_texts(context: RenderContext) -> tuple[str, ...]:
    """Returns a text on the device with the highest average power in the last full minute.

    Returns () if no device reports power.
    """
    powers = [(device.power.average_ratio, -device.index) for device in context.snapshot.devices if device.power]
    if not powers:
        return ()
    ratio, negative_index = max(powers)
    return (f"power up to {units.percent_text(ratio, 0)} (ND {-negative_index}{power_mark(context.snapshot)})",)


def vcpu_line(context: RenderContext, width: int) -> Line:
    """Draws the vCPU usage of the host and of the Neuron processes in one line, without bars."""
    system, runtime = _vcpu_ratios(context)
    runs: list[Run] = [("vCPU  ", "label"), ("host ", "dim"), (_ratios_text(system), "text")]
    return fit((*runs, ("  Neuron processes ", "dim"), (_ratios_text(runtime), "text")), width)


def _vcpu_ratios(context: RenderContext) -> tuple[_Ratios, _Ratios]:
    """Returns shares of all vCPUs (user time, system time): of the whole host, and of the current tab's processes."""
    average = context.snapshot.host.vcpu_average
    system: _Ratios = (None, None) if average is None else user_and_system_ratios(average)
    count = context.snapshot.host.vcpu_count
    processes = context.figures.tab_processes(context.pid)
    user, kernel = (
        ratio / count if ratio is not None and count else None
        for ratio in (
            sum_known(process.vcpu_user_ratio for process in processes),
            sum_known(process.vcpu_system_ratio for process in processes),
        )
    )
    return system, (user, kernel)


def _ratios_text(ratios: _Ratios) -> str:
    user, system = (units.percent_text(ratio, 0).rjust(4) for ratio in ratios)
    return f"user {user} system {system}"


def _usage_bar(context: RenderContext, label: str, ratios: _Ratios, width: int) -> Line:
    user, system = ratios
    figure = f" {_ratios_text(ratios)} "
    cells = width - _USAGE_LABEL_CELLS - len(figure)
    drawn = stacked_bar(((user, "busy"), (system, "system")), cells, context.glyphs)
    return ((label.ljust(_USAGE_LABEL_CELLS), "text"), *drawn, (figure, "text"))


def job_rows(context: RenderContext, *, every: bool = False) -> list[JobRow]:
    """Returns the rows of the job list: jobs, and the processes of unfolded jobs. `every` unfolds all jobs."""
    rows: list[JobRow] = []
    for job in context.figures.jobs:
        ranks = [rank for rank in job.ranks if context.pid in (None, rank.process.pid)]
        rows += job_and_rank_rows(job, ranks, is_open=every or job_key(job) in context.unfolded)
    return rows


def job_list_section(
    context: RenderContext, rows: list[JobRow], width: int, height: int, *, with_cursor: bool = True
) -> TextPage:
    """Draws the job list with heading and titles in at most `height` lines, scrolled to the cursor."""
    page = TextPage()
    if height >= min(_LEAST_LINES_WITH_HEADING, len(rows) + 2) or not rows:
        hint = "" if not with_cursor else context.key_hint("Enter: unfold, details" if rows else "")
        page.add_lines(_job_list_heading(context, rows, width, hint))
    if not rows:
        empty_text = "nobody holds a NeuronCore; start a script with: neuron-run train.py"
        empty_text = "this process holds no NeuronCore" if context.pid is not None else empty_text
        page.add_lines(fit_marked(((f"  {empty_text}", "dim"),), width))
        return page
    columns = fitting_job_columns(context, rows, width)
    titles: list[Run] = []
    for column, cells in columns:
        titles += [(cell(column.title, cells, right=column.is_number), "column"), (" ", "column")]
    page.add_lines(fit(titles, width, "column"))
    room = max(1, height - len(page.lines))
    if with_cursor:
        add_scrolled_list(
            context, page, len(rows), room, lambda position: _job_line(context, rows[position], columns, width)
        )
    else:
        page.add_lines(*(_job_line(context, row, columns, width) for row in rows[:room]))
    return page


def _job_list_heading(context: RenderContext, rows: list[JobRow], width: int, hint: str = "") -> Line:
    jobs = [row.job for row in rows if row.rank is None]
    alone = sum(row.rank is not None and not row.is_below for row in rows)
    parts = []
    if jobs:
        count = sum(len(job.ranks) for job in jobs)
        parts.append(f"{len(jobs)} job{'s' * (len(jobs) > 1)} of {count} processes")
    if alone:
        parts.append(f"{alone} process{'es' * (alone != 1)}")
    about = ", ".join(filter(None, (free_cores_text(context.figures), hint)))
    return heading(context, "Jobs: " + (", ".join(parts) or "none"), width, about)


@dataclass(frozen=True, slots=True)
class JobColumn:
    """A column of the job list. Narrow screens drop columns with the highest `need` first."""

    title: str
    cells: int
    need: int
    text: Callable[[RenderContext, JobRow], str]
    style: Callable[[RenderContext, JobRow], str] = lambda _context, _row: "text"
    is_number: bool = False


def _name_parts(context: RenderContext, row: JobRow) -> tuple[str, str]:
    """Returns the name of a row and the dim detail behind it: the PID, or the number in the job's name."""
    mark = "  "
    if row.rank is None:
        title, number = split_job_name(printable(row.job.name or "", 80))
        mark = context.glyphs.opened if row.is_open else context.glyphs.closed
        tags = {rank.process.tag for rank in row.job.ranks}
        tag = f"{printable(tags.pop(), 80)}, " if len(tags) == 1 else ""
        return mark + tag + title, number
    process = row.rank.process
    if row.is_below:
        rank = f" rank {row.rank.number}" if row.rank.number is not None else ""
        tag = "" if process.tag == str(process.pid) else f" {printable(process.tag, 80)}"
        return f"{mark * 2}{process.pid}{rank}{tag}", ""
    number = "" if process.label == str(process.pid) else f" {process.pid}"
    return mark + printable(process.label, 80), number


def _name_text(context: RenderContext, row: JobRow) -> str:
    return "".join(_name_parts(context, row))


def _highest_severity(row: JobRow) -> Severity:
    """Returns the highest severity of the findings on a row's job or process.

    A finding on a stuck rank does not count for ranks that only wait for this rank.
    """
    pid = row.pid
    return max(
        (
            finding.severity
            for finding in row.job.findings
            if pid is None or pid == finding.pid or (finding.kind != FindingKind.STUCK and pid in finding.pids)
        ),
        default=Severity.OK,
    )


def _user_text(_context: RenderContext, row: JobRow) -> str:
    users = row.job.users if row.rank is None else (row.rank.process.user,)
    return "-" if not users or users[0] is None else "several" if len(users) > 1 else printable(users[0], 40)


def _ranks_text(_context: RenderContext, row: JobRow) -> str:
    if row.rank is not None:
        return ""
    here, world = len(row.job.ranks), row.job.world_size
    return str(here) if world in (None, here) else f"{here}/{world}"


def _cores_text(_context: RenderContext, row: JobRow) -> str:
    if row.rank is None and row.job.neuroncore_indices:
        is_inferred = any("core_indices" in rank.process.inferred_fields for rank in row.job.ranks)
        return ranges_text(row.job.neuroncore_indices) + "?" * is_inferred
    return cores_text((row.rank or row.job.ranks[0]).process)


def _row_utilization(row: JobRow) -> float | None:
    return (row.rank or row.job).utilization_ratio


def _utilization_style(context: RenderContext, row: JobRow) -> str:
    ratio = _row_utilization(row)
    return "dim" if ratio is None else load_style(ratio, context.thresholds.idle_below_ratio)


def _memory_text(_context: RenderContext, row: JobRow) -> str:
    return units.short_bytes_text((row.rank or row.job).device_memory_bytes)


def _steps_text(_context: RenderContext, row: JobRow) -> str:
    return units.short_rate_text((row.rank or row.job).steps_per_second, _RATE_CELLS)


def _requests_text(_context: RenderContext, row: JobRow) -> str:
    if row.rank is None:
        return units.short_rate_text(row.job.requests_per_second, _RATE_CELLS)
    return units.short_rate_text(row.rank.requests_per_second, _RATE_CELLS)


def _request_p99_text(_context: RenderContext, row: JobRow) -> str:
    if row.rank is None:
        return units.short_duration_text(row.job.request_p99_seconds)
    return units.short_duration_text(row.rank.request_p99_seconds)


def _executions_text(_context: RenderContext, row: JobRow) -> str:
    per_second = (row.rank.process if row.rank is not None else row.job).executions_per_second
    return units.short_rate_text(per_second, _RATE_CELLS)


def _last_execution_text(context: RenderContext, row: JobRow) -> str:
    at = (row.rank or row.job).last_execution_at_unix_seconds
    return units.short_duration_text(None if at is None else max(0.0, context.snapshot.taken_at_unix_seconds - at))


def _straggler_cell(_context: RenderContext, row: JobRow) -> str:
    """Returns the stuck rank or straggler of a job. For a process, returns "stuck", "slowest" or ""."""
    if row.rank is None:
        return straggler_text(row.job)
    if any(finding.kind == FindingKind.STUCK and finding.pid == row.pid for finding in row.job.findings):
        return "stuck"
    found = reported_straggler(row.job)
    return " ".join(filter(None, ("slowest", found.part))) if found is not None and row.rank is found.rank else ""


def _straggler_style(_context: RenderContext, row: JobRow) -> str:
    return "bad" if any(finding.kind == FindingKind.STUCK for finding in row.job.findings) else "text"


def _where_text(context: RenderContext, row: JobRow) -> str:
    figures = context.figures.process_figures(row.pid or row.job.ranks[0].process.pid)
    return "-" if figures is None else WHERE.text(figures)


def _script_cell(context: RenderContext, row: JobRow) -> str:
    rank = row.rank or row.job.ranks[0]
    script = script_text(printable(rank.process.command)) or "-"
    since = (row.rank or row.job).compiling_since_seconds
    missing = row.job.missing_ranks if row.rank is None else ()
    if missing:
        script = f"rank{'s' * (len(missing) > 1)} {ranges_text(missing)} missing: {script}"
    if since is None:
        return script
    return f"compiling {units.short_duration_text(context.snapshot.taken_at_seconds - since)}: {script}"


def _script_style(_context: RenderContext, row: JobRow) -> str:
    is_well = (row.rank or row.job).compiling_since_seconds is None and (row.rank or not row.job.missing_ranks)
    return "text" if is_well else "warn"


def _script_repeats_name(context: RenderContext, row: JobRow) -> bool:
    """Returns whether the cell of the script begins with a part of the job's name and has no warning."""
    title = split_job_name(row.job.name or "")[0]
    script = script_text((row.rank or row.job.ranks[0]).process.command)
    is_repeated = bool(script and title) and (title in script or script.split()[0] in title.split())
    return is_repeated and _script_style(context, row) == "text"


def _last_step_text(context: RenderContext, row: JobRow) -> str:
    at = (row.rank or row.job).last_step_at_seconds
    return units.short_duration_text(age_seconds(at, context.snapshot.taken_at_seconds))


_NAME = JobColumn("  JOB", _LEAST_NAME, 0, _name_text)
_RANKS = JobColumn("RANKS", 6, 1, _ranks_text, is_number=True)
_STEPS = JobColumn("STEP/S", _RATE_CELLS, 2, _steps_text, is_number=True)
_EXECUTIONS = JobColumn("EXEC/S", _RATE_CELLS, 3, _executions_text, is_number=True)
_REQUESTS = JobColumn("REQ/S", _RATE_CELLS, 2, _requests_text, is_number=True)
_REQUEST_P99 = JobColumn("REQ P99", 8, 2, _request_p99_text, is_number=True)
_LAST_STEP = JobColumn("LAST STEP", 9, 3, _last_step_text, is_number=True)
_STRAGGLER = JobColumn("STRAGGLER", 16, 3, _straggler_cell, _straggler_style)
_WHERE = JobColumn("WHERE", 20, 4, _where_text)
_SCRIPT = JobColumn("SCRIPT", 16, 1, _script_cell, _script_style)
_COLUMNS = (
    JobColumn(
        "",
        1,
        0,
        lambda context, row: severity_mark(context.glyphs, _highest_severity(row)),
        lambda _, row: SEVERITY_STYLES.get(_highest_severity(row), "text"),
    ),
    _NAME,
    JobColumn("USER", 9, 2, _user_text),
    _RANKS,
    JobColumn("CORES", 8, 0, _cores_text, is_number=True),
    JobColumn(
        "UTIL", 6, 0, lambda _, row: units.percent_text(_row_utilization(row), 1), _utilization_style, is_number=True
    ),
    JobColumn("DEV MEM", 8, 1, _memory_text, is_number=True),
    _STEPS,
    _REQUESTS,
    _REQUEST_P99,
    _LAST_STEP,
    _EXECUTIONS,
    _STRAGGLER,
    JobColumn("LAST EXEC", 9, 4, _last_execution_text, is_number=True),
    _WHERE,
    _SCRIPT,
)


def fitting_job_columns(context: RenderContext, rows: list[JobRow], width: int) -> list[tuple[JobColumn, int]]:
    """Returns the columns of the job list that have values and fit, each with its width in cells."""
    has_jobs = any(row.rank is None for row in rows)
    has_steps = any(rank.steps_per_second is not None for job in context.figures.jobs for rank in job.ranks)
    has_requests = any(job.last_request_at_seconds is not None for job in context.figures.jobs)
    left_out = {
        column.title
        for column, is_used in (
            (_RANKS, has_jobs),
            (_STRAGGLER, has_jobs),
            (_STEPS, has_steps),
            (_LAST_STEP, any(job.last_step_at_seconds is not None for job in context.figures.jobs)),
            (_REQUESTS, has_requests),
            (_REQUEST_P99, has_requests),
            (_EXECUTIONS, not has_steps and not has_requests),
            (_WHERE, any(row.job.ranks[0].process.attribution is not None for row in rows)),
        )
        if not is_used
    }
    columns: list[JobColumn] = []
    used = 0
    for column in sorted(_COLUMNS, key=lambda column: column.need):
        if column.title not in left_out and used + column.cells + 1 <= width:
            columns.append(column)
            used += column.cells + 1
    spare = width - used
    needed = max((width_of(_name_text(context, row)) for row in rows), default=0)
    longer = min(needed, _LONGEST_NAME) - _LEAST_NAME  # cells by which the longest name exceeds _LEAST_NAME
    if spare < longer and _SCRIPT in columns and all(_script_repeats_name(context, row) for row in rows):
        columns.remove(_SCRIPT)
        spare += _SCRIPT.cells + 1
        for column in sorted(_COLUMNS, key=lambda column: column.need):
            is_new = column not in columns and column is not _SCRIPT and column.title not in left_out
            if is_new and column.cells + 1 + longer <= spare:
                columns.append(column)
                spare -= column.cells + 1
    longer = max(0, min(longer, spare))
    cells = {_NAME.title: _LEAST_NAME + longer, _SCRIPT.title: _SCRIPT.cells + spare - longer}
    columns.sort(key=_COLUMNS.index)
    return [(column, cells.get(column.title, column.cells)) for column in columns]


def _job_line(context: RenderContext, row: JobRow, columns: list[tuple[JobColumn, int]], width: int) -> Line:
    ranks = row.job.ranks if row.rank is None else (row.rank,)
    base = "text" if any(rank.process.reporting or rank.process.synthetic for rank in ranks) else "dim"
    runs: list[Run] = []
    for column, cells in columns:
        style = column.style(context, row)
        if column is _NAME:
            name, number = _name_parts(context, row)
            name = clip(name, max(cells - len(number), _LEAST_NAME // 2), mark=True)
            runs += [(name, base), (cell(number, cells - width_of(name)) + " ", "dim")]
            continue
        text = cell(column.text(context, row), cells, right=column.is_number)
        runs += [(text, base if style == "text" else style), (" ", base)]
    return fit(runs, width)
