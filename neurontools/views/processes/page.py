"""The page "who holds my cores": all processes with their figures."""

from __future__ import annotations

from neurontools import catalog
from neurontools.model import Process
from neurontools.util import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.line import Line, Page, Run, Target, cell, clip, fit, fit_marked, foreign, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED, load_style
from neurontools.views.entry import Entry
from neurontools.views.job_rows import JobRow, entries_of, slowest_text
from neurontools.views.processes.columns import COMMAND, ProcessColumn, arranged, chosen
from neurontools.views.processes.details import core_doubt, process_details, when_text
from neurontools.views.processes.filter import InvalidFilter, parse_filter
from neurontools.views.processes.rows import figures_of, process_rows
from neurontools.views.processes.surroundings import surroundings_entries


def process_page(scene: Scene, width: int, height: int) -> Page:
    """The list, with what the selected process is below; or the details of one."""
    if scene.details_pid is not None:
        figures = scene.figures.of(scene.details_pid)
        if figures is not None:
            return process_details(scene, figures, width, height)
        page = Page([heading(scene, f"PID {scene.details_pid}", width)])
        text = f" this process holds no cores at the moment shown{scene.key_hint('; Esc goes back')}"
        page.add(fit(((text, "dim"),), width))
        return page
    rows = process_rows(scene)
    every = scene.figures.shown(scene.pid)
    page = Page([_head(scene, rows, len(every), width)])
    with_place = any(figures.process.attribution is not None for figures in every)
    with_steps = any(figures.steps_per_second is not None for figures in every)
    if scene.columns:
        columns, command_cells = arranged(scene.columns, width, with_place=with_place, with_steps=with_steps)
    else:
        columns, command_cells = chosen(width, with_place=with_place, with_steps=with_steps)
    page.append(_titles(scene, columns, command_cells, width))
    footer = _footer(scene, rows, width) if height >= 8 and scene.cursor >= 0 else []
    list_height = max(1, height - len(page.lines) - len(footer))
    cursor = min(scene.cursor, len(rows) - 1)
    top = visible_top(cursor, scene.top, list_height, len(rows))
    lines = []
    for position in range(top, min(len(rows), top + list_height)):
        line = _row(scene, rows[position], columns, command_cells, width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(rows), list_height, top)
    if not rows:
        nobody = "no process holds a NeuronCore"
        if scene.filter_text:
            nobody = f"no process passes the filter{scene.key_hint('; Esc clears it')}"
        page.add(fit_marked(((f"  {nobody}", "dim"),), width))
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add(*footer)
    return page


def process_entries(scene: Scene, every: bool) -> list[Entry]:
    """What a search sees of the list, with `every` job open or as it is, or of environment and tree where those are."""
    if scene.surroundings is not None:
        return surroundings_entries(scene.surroundings)
    return entries_of(process_rows(scene, every=every), scene.figures) if scene.details_pid is None else []


def _head(scene: Scene, rows: list[JobRow], every: int, width: int) -> Line:
    listed = sum(len(row.ranks) for row in rows if not row.is_below)
    text = _counted(every) if listed == every else f"{listed} of {every} processes"
    jobs = sum(row.rank is None for row in rows)
    if jobs:
        text += f", {jobs} job{'s' * (jobs > 1)}"
    if scene.tagged:
        text += f", {len(scene.tagged)} tagged"
    if scene.filter_text:
        text += f"  filter: {foreign(scene.filter_text, 80)}{_why_invalid(scene.filter_text)}"
    if scene.search_text:
        text += f"  search: {foreign(scene.search_text, 80)}, {scene.found_text}{_why_invalid(scene.search_text)}"
    free = sum(1 for core in scene.figures.cores if core.is_free)
    unknown = sum(1 for core in scene.figures.cores if core.is_free is None)
    return heading(
        scene,
        clip(text, max(1, width - 4), mark=True),
        width,
        f"{free} of {len(scene.figures.cores)} cores free" + (f", {unknown} unknown" if unknown else ""),
    )


def _why_invalid(text: str) -> str:
    try:
        parse_filter(text)
    except InvalidFilter as error:
        return f"  ({foreign(str(error), 120)})"
    return ""


def _counted(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"


def _titles(scene: Scene, columns: list[ProcessColumn], command_cells: int, width: int) -> Page:
    runs: list[Run] = [("  ", "column")]
    targets, left = [], 2
    arrows = {
        key: scene.glyphs.descending if is_descending else scene.glyphs.ascending
        for key, is_descending in ((scene.then_sort, scene.is_then_descending), (scene.sort, scene.is_descending))
    }
    shown = [(column, column.cells) for column in columns]
    if command_cells:
        shown.append((COMMAND, command_cells - 1))
    for column, cells in shown:
        is_sorted = column.key == scene.sort
        title = column.title + arrows.get(column.key, "")
        runs += [
            (cell(title, cells, right=not column.is_text), "column_sorted" if is_sorted else "column"),
            (" ", "column"),
        ]
        targets.append(Target(0, left, left + cells + 1, "sort", column.key))
        left += cells + 1
    return Page([fit(runs, width, "column")], targets)


def _row(scene: Scene, row: JobRow, columns: list[ProcessColumn], command_cells: int, width: int) -> Line:
    figures = figures_of(scene.figures, row)
    mark = scene.glyphs.mark[:1] if scene.tagged.issuperset(row.pids) else " "
    fold = "" if row.rank is not None else scene.glyphs.opened[:1] if row.is_open else scene.glyphs.closed[:1]
    runs: list[Run] = [(cell(mark + fold, 2), "strong")]
    base = "text" if figures.process.reporting or figures.process.synthetic else "dim"
    for column in columns:
        text = _own_text(row, column) or column.text(figures)
        shown = cell(text, column.cells, right=not column.is_text)
        runs += [(shown, _style(scene, column, figures, base)), (" ", base)]
    if command_cells:
        runs.append((clip(COMMAND.text(figures), command_cells, mark=True), base))
    return fit(runs, width)


def _own_text(row: JobRow, column: ProcessColumn) -> str:
    """What a job has in place of a PID, and a process of it in place of a tag that nobody gave; "" for all else."""
    if column.key == "pid" and row.rank is None:
        return f"{len(row.ranks)} ranks"
    has_no_tag = row.rank is not None and row.rank.process.tag == str(row.pid)
    if column.key == "tag" and row.rank is not None and row.rank.number is not None and has_no_tag:
        return f"rank {row.rank.number}"
    return ""


def _style(scene: Scene, column: ProcessColumn, figures: ProcessFigures, base: str) -> str:
    if column.key == "util" and figures.utilization_ratio is not None:
        return load_style(figures.utilization_ratio, scene.thresholds.idle_below_ratio)
    if column.key == "errors" and (figures.errors_total or figures.failed_executions_total):
        return "bad"
    if column.key == "last" and (figures.since_last_execution_seconds or 0) > scene.thresholds.late_after_seconds:
        return "warn"
    return base


def _footer(scene: Scene, rows: list[JobRow], width: int) -> list[Line]:
    """The selected process or job in words, for what has no room in the row."""
    if not rows:
        return []
    row = rows[min(scene.cursor, len(rows) - 1)]
    figures = figures_of(scene.figures, row)
    process = figures.process
    peak = scene.figures.peak_flops_per_core
    note = (
        f"MFU: of {units.flops_text(peak)} {catalog.PEAK_DTYPE} peak a physical core"
        if peak
        else f"MFU: no {catalog.PEAK_DTYPE} peak known"
    )
    name = f"PID {process.pid}" if row.rank is not None else foreign(row.job.name or "", 80)
    facts = _facts_of_job(row) if row.rank is None else _facts(process)
    command = clip(f" {foreign(process.command, 2 * width) or 'command not known'}", width, mark=True)
    return [
        heading(scene, name, width, note),
        fit(((command, "text"),), width),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]


def _facts_of_job(row: JobRow) -> str:
    count, world = len(row.ranks), row.job.world_size
    here = f"{count} ranks" if world in (None, count) else f"{count} of {world} ranks"
    slowest = slowest_text(row.job)
    facts = f" {here}, Enter {'folds' if row.is_open else 'lists'} them" + (
        "" if slowest == "-" else f", slowest: {slowest}"
    )
    return facts + "".join(f"; {each.severity.name.lower()}: {foreign(each.reason, 200)}" for each in row.job.findings)


def _facts(process: Process) -> str:
    started = when_text(process.started_at_unix_seconds)
    runtime = foreign(process.runtime_version or "-", 40)
    facts = f" attached {when_text(process.attached_at_unix_seconds)}, started {started}, runtime {runtime}"
    if process.synthetic:
        facts += ", synthetic: no such process exists"
    elif not process.reporting:
        facts += ", not reporting: its numbers are old"
    if doubt := core_doubt(process):
        facts += f", {doubt}"
    return facts
