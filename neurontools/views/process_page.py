"""The page "who holds my cores": all processes with their figures, or one of them with its past."""

from __future__ import annotations

import time

from neurontools import units
from neurontools.model import Process, SourceKind
from neurontools.views.core_grid import heading
from neurontools.views.figures import PEAK_DTYPE, ProcessFigures, ranges
from neurontools.views.line import Line, Page, Run, Target, cell, clip, fit, foreign, styled
from neurontools.views.plots import plot_with_scale
from neurontools.views.process_columns import BY_KEY, COMMAND, PLACE, ProcessColumn, chosen, sort_value
from neurontools.views.process_filter import InvalidFilter, parse_filter
from neurontools.views.scene import Scene, visible_top
from neurontools.views.style import SELECTED

_RATIO_OF_A_GOOD_CORE = 0.02


def process_rows(scene: Scene) -> list[ProcessFigures]:
    """The processes of the current tab that pass the filter, in order; all of them while the filter is not valid."""
    rows = list(scene.figures.shown(scene.pid))
    if scene.filter_text:
        try:
            passes = parse_filter(scene.filter_text)
            rows = [row for row in rows if passes(row)]
        except InvalidFilter:
            pass
    column = BY_KEY.get(scene.sort, BY_KEY["pid"])
    rows.sort(key=lambda row: row.pid)
    known = [row for row in rows if column.read(row) is not None]
    unknown = [row for row in rows if column.read(row) is None]
    known.sort(key=lambda row: sort_value(column, row), reverse=scene.is_descending)
    return known + unknown


def process_page(scene: Scene, width: int, height: int) -> Page:
    """The list, with what the selected process is below; or the details of one."""
    if scene.details_pid is not None:
        figures = scene.figures.by_pid.get(scene.details_pid)
        if figures is not None:
            return process_details(scene, figures, width, height)
        page = Page([heading(scene, f"PID {scene.details_pid}", width)])
        page.add(fit(((" this process holds no cores at the moment shown; Esc goes back", "dim"),), width))
        return page
    rows = process_rows(scene)
    page = Page([_head(scene, rows, width)])
    columns, command_cells = chosen(width, with_place=any(row.process.attribution is not None for row in rows))
    page.append(_titles(scene, columns, command_cells, width))
    footer = _footer(scene, rows, width) if height >= 8 else []
    list_height = max(1, height - len(page.lines) - len(footer))
    cursor = min(scene.cursor, len(rows) - 1)
    top = visible_top(cursor, scene.top, list_height, len(rows))
    lines = []
    for position in range(top, min(len(rows), top + list_height)):
        line = _row(scene, rows[position], columns, command_cells, width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(rows), list_height, top)
    if not rows:
        nobody = "no process passes the filter; Esc clears it" if scene.filter_text else "no process holds a NeuronCore"
        page.add(fit(((f"  {nobody}", "dim"),), width))
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add(*footer)
    return page


def _head(scene: Scene, rows: list[ProcessFigures], width: int) -> Line:
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
    free = sum(1 for core in scene.figures.cores if core.is_free)
    unknown = sum(1 for core in scene.figures.cores if core.is_free is None)
    return heading(
        scene,
        clip(text, max(1, width - 4), mark=True),
        width,
        f"{free} of {len(scene.figures.cores)} cores free" + (f", {unknown} unknown" if unknown else ""),
    )


def _counted(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"


def _titles(scene: Scene, columns: list[ProcessColumn], command_cells: int, width: int) -> Page:
    runs: list[Run] = [("  ", "column")]
    targets, left = [], 2
    arrow = scene.glyphs.descending if scene.is_descending else scene.glyphs.ascending
    shown = [(column, column.cells) for column in columns]
    if command_cells:
        shown.append((COMMAND, command_cells - 1))
    for column, cells in shown:
        is_sorted = column.key == scene.sort
        title = column.title + arrow if is_sorted else column.title
        runs += [
            (cell(title, cells, right=not column.is_text), "column_sorted" if is_sorted else "column"),
            (" ", "column"),
        ]
        targets.append(Target(0, left, left + cells + 1, "sort", column.key))
        left += cells + 1
    return Page([fit(runs, width, "column")], targets)


def _row(scene: Scene, figures: ProcessFigures, columns: list[ProcessColumn], command_cells: int, width: int) -> Line:
    mark = scene.glyphs.mark if figures.pid in scene.tagged else " "
    runs: list[Run] = [(cell(mark, 2), "strong")]
    base = "text" if figures.process.reporting or figures.process.synthetic else "dim"
    for column in columns:
        runs += [
            (cell(column.text(figures), column.cells, right=not column.is_text), _style(column, figures, base)),
            (" ", base),
        ]
    if command_cells:
        runs.append((clip(COMMAND.text(figures), command_cells, mark=True), base))
    return fit(runs, width)


def _style(column: ProcessColumn, figures: ProcessFigures, base: str) -> str:
    if column.key == "util" and figures.utilization_ratio is not None:
        return "busy" if figures.utilization_ratio >= _RATIO_OF_A_GOOD_CORE else "warn"
    if column.key == "errors" and (figures.errors_total or figures.failed_executions_total):
        return "bad"
    if column.key == "last" and (figures.since_last_execution_seconds or 0) > 30:
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
        f"MFU: of {units.flops_text(peak)} {PEAK_DTYPE} peak a physical core"
        if peak
        else f"MFU: no {PEAK_DTYPE} peak known"
    )
    started = _when(process.started_at_unix_seconds)
    runtime = foreign(process.runtime_version or "-", 40)
    facts = f" attached {_when(process.attached_at_unix_seconds)}, started {started}, runtime {runtime}"
    if process.synthetic:
        facts += ", synthetic: no such process exists"
    elif not process.reporting:
        facts += ", not reporting: its numbers are old"
    if doubt := core_doubt(process):
        facts += f", {doubt}"
    return [
        heading(scene, f"PID {process.pid}", width, note),
        fit(((f" {foreign(process.command, 2 * width) or 'command not known'}", "text"),), width),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]


def core_doubt(process: Process) -> str:
    """What isn't certain of the cores a process holds, in words; "" when they are known."""
    if "core_indices" in process.inferred_fields:
        return "its cores are inferred: it alone has their devices open"
    if not process.core_indices and process.runtime_version is not None and process.device_indices:
        return f"its cores are unknown: others have ND {ranges(process.device_indices)} open too"
    return ""


def _when(unix_seconds: float | None) -> str:
    return "-" if unix_seconds is None else time.strftime("%m-%d %H:%M:%S", time.localtime(unix_seconds))


def process_details(scene: Scene, figures: ProcessFigures, width: int, height: int) -> Page:
    """One process: facts, then plots of its recent past."""
    process = figures.process
    page = Page([heading(scene, f"Process {process.pid}  {foreign(process.tag, 60)}", width, "Esc back")])
    latency = process.total_latency
    errors = process.errors
    host = process.host_memory
    facts = (
        ("command", foreign(process.command, 1000) or "-"),
        ("user", f"{foreign(process.user or '-', 40)} (uid {process.uid if process.uid is not None else '-'})"),
        *((("where", PLACE.text(figures)),) if process.attribution is not None else ()),
        ("started", f"{_when(process.started_at_unix_seconds)}, attached {_when(process.attached_at_unix_seconds)}"),
        ("runtime", f"{foreign(process.runtime_version or '-', 40)}, LNC {process.logical_neuroncore_config}"),
        (
            "cores",
            f"NC {ranges(process.neuroncore_indices) or '-'} on ND {ranges(process.device_indices)}"
            + (f"; {doubt}" if (doubt := core_doubt(process)) else ""),
        ),
        (
            "now",
            (
                f"util {units.percent_text(figures.utilization_ratio)}  {units.flops_text(figures.flops_per_second)}  "
                f"MFU {units.percent_text(figures.mfu_ratio)} of {PEAK_DTYPE} peak"
            ),
        ),
        (
            "executions",
            (
                f"{'-' if process.executions_per_second is None else f'{process.executions_per_second:.1f}'}/s, "
                f"{'-' if process.executions is None else units.count_text(process.executions.completed_total)} "
                f"completed, {'-' if figures.failed_executions_total is None else figures.failed_executions_total} "
                "failed, "
                f"last {units.duration_text(figures.since_last_execution_seconds)} ago"
            ),
        ),
        (
            "latency",
            ("-" if process.executions is None or scene.snapshot.source is SourceKind.SYSFS else "nothing ran")
            if latency is None
            else "  ".join(
                f"{name} {units.duration_text(getattr(latency, f'{name}_seconds'))}"
                for name in ("p0", "p25", "p50", "p75", "p99", "p100")
            ),
        ),
        (
            "errors",
            "-"
            if errors is None
            else "  ".join(
                f"{name} {getattr(errors, f'{name}_total')}"
                for name in ("generic", "numerical", "transient", "model", "runtime", "hardware")
            ),
        ),
        (
            "memory",
            (
                f"device {units.bytes_text(figures.device_memory_bytes)}, host {units.bytes_text(host.total_bytes)} "
                f"of {units.bytes_text(process.resident_bytes)} resident"
            ),
        ),
        (
            "models",
            ", ".join(f"{foreign(m.name, 80)} ({'running' if m.running else 'loaded'})" for m in process.models[:4])
            or ("-" if scene.snapshot.source is SourceKind.SYSFS else "none"),
        ),
    )
    style = "bad" if figures.errors_total else "text"
    for name, text in facts[: max(1, height - 2)]:
        runs: Line = (
            (f" {name:<11}", "label"),
            (clip(text, width - 12, mark=True), style if name == "errors" else "text"),
        )
        page.add(fit(runs, width))
    series = scene.series
    room = height - len(page.lines)
    if series is None or room < 4:
        return page
    count = min(series.count_within(scene.window_seconds), 3600)
    pid = process.pid
    plots = (
        ("Utilization", series.process_utilization(pid, count), 1.0, lambda value: units.percent_text(value, 0)),
        ("FLOPS", series.process_flops(pid, count), None, units.flops_text),
        ("Device memory", series.process_memory(pid, count), None, lambda value: units.bytes_text(int(value))),
        ("Executions a second", series.process_executions(pid, count), None, lambda value: f"{value:.1f}"),
        ("Latency p99", series.process_latency(pid, count), None, units.duration_text),
    )
    across = 2 if width >= 100 else 1
    down = max(1, min(-(-len(plots) // across), room // 4))
    each = room // down
    for row in range(down):
        parts = [
            plot_with_scale(scene, title, values, highest, text, width // across, each)
            for title, values, highest, text in plots[row * across : (row + 1) * across]
        ]
        for number in range(each):
            runs = tuple(run for part in parts if number < len(part) for run in part[number])
            page.add(fit(runs, width))
    return page
