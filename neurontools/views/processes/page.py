"""The page "who holds my cores": all processes with their figures."""

from __future__ import annotations

from neurontools import catalog
from neurontools.text import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.line import Line, Page, Run, Target, cell, clip, fit, foreign, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED, load_style
from neurontools.views.processes.columns import COMMAND, ProcessColumn, arranged, chosen, in_order
from neurontools.views.processes.details import core_doubt, process_details, when_text
from neurontools.views.processes.filter import InvalidFilter, parse_filter


def process_rows(scene: Scene) -> list[ProcessFigures]:
    """The processes of the current tab that pass the filter, in order; all of them while the filter is not valid."""
    rows = list(scene.figures.shown(scene.pid))
    if scene.filter_text:
        try:
            passes = parse_filter(scene.filter_text)
            rows = [row for row in rows if passes(row)]
        except InvalidFilter:
            pass
    return in_order(rows, ((scene.sort, scene.is_descending), (scene.then_sort, scene.is_then_descending)))


def matches(scene: Scene, rows: list[ProcessFigures]) -> list[int]:
    """The positions of the rows that the search finds; none while there is nothing to look for."""
    if not scene.search_text.strip():
        return []
    try:
        finds = parse_filter(scene.search_text)
    except InvalidFilter:
        return []
    return [position for position, row in enumerate(rows) if finds(row)]


def process_page(scene: Scene, width: int, height: int) -> Page:
    """The list, with what the selected process is below; or the details of one."""
    if scene.details_pid is not None:
        figures = scene.figures.of(scene.details_pid)
        if figures is not None:
            return process_details(scene, figures, width, height)
        page = Page([heading(scene, f"PID {scene.details_pid}", width)])
        page.add(fit(((" this process holds no cores at the moment shown; Esc goes back", "dim"),), width))
        return page
    rows = process_rows(scene)
    found = matches(scene, rows)
    page = Page([_head(scene, rows, found, width)])
    with_place = any(row.process.attribution is not None for row in rows)
    with_steps = any(row.steps_per_second is not None for row in rows)
    if scene.columns:
        columns, command_cells = arranged(scene.columns, width, with_place=with_place, with_steps=with_steps)
    else:
        columns, command_cells = chosen(width, with_place=with_place, with_steps=with_steps)
    page.append(_titles(scene, columns, command_cells, width))
    footer = _footer(scene, rows, width) if height >= 8 else []
    list_height = max(1, height - len(page.lines) - len(footer))
    cursor = min(scene.cursor, len(rows) - 1)
    top = visible_top(cursor, scene.top, list_height, len(rows))
    lines = []
    for position in range(top, min(len(rows), top + list_height)):
        line = _row(scene, rows[position], columns, command_cells, width, is_found=position in found)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(rows), list_height, top)
    if not rows:
        nobody = "no process passes the filter; Esc clears it" if scene.filter_text else "no process holds a NeuronCore"
        page.add(fit(((f"  {nobody}", "dim"),), width))
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add(*footer)
    return page


def _head(scene: Scene, rows: list[ProcessFigures], found: list[int], width: int) -> Line:
    every = len(scene.figures.shown(scene.pid))
    text = _counted(every) if len(rows) == every else f"{len(rows)} of {every} processes"
    if scene.tagged:
        text += f", {len(scene.tagged)} tagged"
    if scene.filter_text:
        text += f"  filter: {foreign(scene.filter_text, 80)}"
        try:
            parse_filter(scene.filter_text)
        except InvalidFilter as error:
            text += f"  ({foreign(str(error), 120)})"
    if scene.search_text:
        text += f"  search: {foreign(scene.search_text, 80)}, {_place(scene, found)}"
        try:
            parse_filter(scene.search_text)
        except InvalidFilter as error:
            text += f"  ({foreign(str(error), 120)})"
    free = sum(1 for core in scene.figures.cores if core.is_free)
    unknown = sum(1 for core in scene.figures.cores if core.is_free is None)
    return heading(
        scene,
        clip(text, max(1, width - 4), mark=True),
        width,
        f"{free} of {len(scene.figures.cores)} cores free" + (f", {unknown} unknown" if unknown else ""),
    )


def _place(scene: Scene, found: list[int]) -> str:
    """Which of the matches the cursor is at."""
    if not found:
        return "no match"
    return f"match {found.index(scene.cursor) + 1} of {len(found)}" if scene.cursor in found else f"{len(found)} found"


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


def _row(
    scene: Scene,
    figures: ProcessFigures,
    columns: list[ProcessColumn],
    command_cells: int,
    width: int,
    *,
    is_found: bool,
) -> Line:
    mark = scene.glyphs.mark if figures.pid in scene.tagged else " "
    runs: list[Run] = [(cell(mark, 2), "strong")]
    base = "text" if figures.process.reporting or figures.process.synthetic else "dim"
    if is_found:
        base = "strong"
    for column in columns:
        runs += [
            (cell(column.text(figures), column.cells, right=not column.is_text), _style(scene, column, figures, base)),
            (" ", base),
        ]
    if command_cells:
        runs.append((clip(COMMAND.text(figures), command_cells, mark=True), base))
    return fit(runs, width)


def _style(scene: Scene, column: ProcessColumn, figures: ProcessFigures, base: str) -> str:
    if column.key == "util" and figures.utilization_ratio is not None:
        return load_style(figures.utilization_ratio, scene.thresholds.idle_below_ratio)
    if column.key == "errors" and (figures.errors_total or figures.failed_executions_total):
        return "bad"
    if column.key == "last" and (figures.since_last_execution_seconds or 0) > scene.thresholds.late_after_seconds:
        return "warn"
    return base


def _footer(scene: Scene, rows: list[ProcessFigures], width: int) -> list[Line]:
    """The selected process in words, for what has no room in the row."""
    if not rows:
        return []
    figures = rows[min(scene.cursor, len(rows) - 1)]
    process = figures.process
    peak = scene.figures.peak_flops_per_core
    note = (
        f"MFU: of {units.flops_text(peak)} {catalog.PEAK_DTYPE} peak a physical core"
        if peak
        else f"MFU: no {catalog.PEAK_DTYPE} peak known"
    )
    started = when_text(process.started_at_unix_seconds)
    runtime = foreign(process.runtime_version or "-", 40)
    facts = f" attached {when_text(process.attached_at_unix_seconds)}, started {started}, runtime {runtime}"
    if process.synthetic:
        facts += ", synthetic: no such process exists"
    elif not process.reporting:
        facts += ", not reporting: its numbers are old"
    if doubt := core_doubt(process):
        facts += f", {doubt}"
    return [
        heading(scene, f"PID {process.pid}", width, note),
        fit(
            ((clip(f" {foreign(process.command, 2 * width) or 'command not known'}", width, mark=True), "text"),), width
        ),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]
