"""The heat map page: utilization of every core over time, which makes stragglers and stalls visible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby

from neurontools.client.samples import CoreStep, TimeAxis, mean_of_cores
from neurontools.model import LogicalNeuronCore
from neurontools.util import units
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.lines import LOADS, SELECTED, Line, Run, TextPage, fit, load_style, styled
from neurontools.views.drawing.plots import (
    backfill_text,
    clock_line,
    event_line,
    event_mark,
    event_severities,
    event_style,
    scale_cells,
    time_axis,
    window_text,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, heading, visible_top

_LEAST_FOOT_HEIGHT = 6  # pages with at least this many lines show events and clock times below the map


def heatmap_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the heat map: a line for each core of the current tab, with one cell per time interval."""
    cores = shown_cores(context)
    about = backfill_text(context) or context.key_hint("l: ") + window_text(context.window_seconds)
    page = TextPage([heading(context, _page_title(context, len(cores)), width, about), _legend_line(context, width)])
    axis = time_axis(context, width)
    if axis is None or context.series is None:
        page.add_lines(fit(((f"  {backfill_text(context) or 'no history yet'}", "dim"),), width))
        return page
    foot = [event_line(context, axis, width), clock_line(context, axis, width)] if height >= _LEAST_FOOT_HEIGHT else []
    stretches = _cell_runs(context.series.core_steps(axis))
    room = max(1, height - len(page.lines) - len(foot))
    cursor = min(context.cursor, max(0, len(cores) - 1))
    top = visible_top(cursor, context.top, room, len(cores))
    lines = []
    for position in range(top, min(len(cores), top + room)):
        core = cores[position]
        is_first = position == top or cores[position - 1].device_index != core.device_index
        line = _core_line(context, core, stretches, axis, width, is_first=is_first)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(cores), room, top)
    page.add_lines(*foot)
    return page


def shown_cores(context: RenderContext) -> list[LogicalNeuronCore]:
    """Returns the cores that the current tab's process holds, or all cores, in the order of the lines."""
    if context.pid is None:
        return list(context.figures.cores)
    return [core for core in context.figures.cores if context.pid in core.owner_pids]


def core_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the shown cores as search entries, with their names, owners and processes."""
    figures = context.figures
    return [
        SearchEntry(
            str(core.index),
            f"ND{core.device_index} ND {core.device_index} NC{core.index} NC {core.index} {owner_text(figures, core)}",
            tuple([figures.by_pid[pid] for pid in core.owner_pids if pid in figures.by_pid]),
        )
        for core in shown_cores(context)
    ]


def _page_title(context: RenderContext, count: int) -> str:
    process_part = "" if context.pid is None else f" of PID {context.pid}"
    return f"Utilization of {count} NeuronCore{'' if count == 1 else 's'}{process_part} over time"


def _legend_line(context: RenderContext, width: int) -> Line:
    glyphs = context.glyphs
    runs: list[Run] = [(" free ", "dim"), (glyphs.free, "dim"), ("  held and idle ", "dim"), (glyphs.held, "held")]
    runs.append(("  0% ", "dim"))
    levels = len(glyphs.heat)
    runs += [(glyph, load_style((position + 0.5) / levels, 0.0)) for position, glyph in enumerate(glyphs.heat)]
    runs.append((" 100%  no data: empty", "dim"))
    return fit(runs, width)


@dataclass(frozen=True, slots=True)
class _CellRun:
    """Adjacent cells of the heat map that show the same time interval."""

    step: CoreStep | None
    cells: int


def _cell_runs(steps: list[CoreStep | None]) -> list[_CellRun]:
    return [_CellRun(same[0], len(same)) for _, group in groupby(steps, key=id) if (same := list(group))]


def _core_line(
    context: RenderContext,
    core: LogicalNeuronCore,
    stretches: list[_CellRun],
    axis: TimeAxis,
    width: int,
    *,
    is_first: bool,
) -> Line:
    first, count = core.cores[0].index, len(core.cores)
    device = f"ND {core.device_index}" if is_first else ""
    left = scale_cells(width)
    latest = units.percent_text(core.utilization_ratio, 0)
    name = f" {device:<6}NC {core.index:<4}{latest:>5} "
    if left < len(name):
        name = f" NC {core.index}"
    runs: list[Run] = [(f"{name:<{left}}"[:left], "label" if is_first else "dim")]
    by_value = _value_cells(context.glyphs, context.thresholds.idle_below_ratio)
    text, style = "", ""
    for stretch in stretches:
        glyph, cell_style = _step_cell(context.glyphs, by_value, stretch.step, first, count)
        if cell_style != style:
            if text:
                runs.append((text, style))
            text, style = "", cell_style
        text += glyph * stretch.cells
    runs.append((text, style))
    own = tuple(event for event in context.events if event.core_index == core.index)
    for position, severity in event_severities(own, axis).items() if own else ():
        runs = _replace_cell(runs, left + position, (event_mark(context.glyphs, severity), event_style(severity)))
    return fit(runs, width)


def _replace_cell(runs: list[Run], at: int, one: Run) -> list[Run]:
    """Replaces the cell with index `at` of a line. Each character of the line must be one cell wide."""
    found: list[Run] = []
    position = 0
    for text, style in runs:
        end = position + len(text)
        if position <= at < end:
            found += [(text[: at - position], style), one, (text[at - position + 1 :], style)]
        else:
            found.append((text, style))
        position = end
    return [run for run in found if run[0]]


@cache
def _value_cells(glyphs: Glyphs, idle_below_ratio: float) -> tuple[Run, ...]:
    """Returns the cell for each percentage of utilization, 0 to 100. Character and colour both encode the value."""
    levels = len(glyphs.heat)
    found = []
    for hundredths in range(101):
        value = hundredths / 100
        style = load_style(value, idle_below_ratio)
        is_busy = style in LOADS
        found.append((glyphs.heat[min(levels - 1, int(value * levels))] if is_busy else glyphs.held, style))
    return tuple(found)


def _step_cell(glyphs: Glyphs, by_value: tuple[Run, ...], step: CoreStep | None, first: int, count: int) -> Run:
    if step is None or first >= len(step.means):
        return " ", "text"
    value = step.means[first] if count == 1 else mean_of_cores(step, first, count)
    if not value and not any(step.owners[first : first + count]):
        return glyphs.free, "dim"
    if value is None:
        return "?", "dim"
    return by_value[round(max(0.0, min(1.0, value)) * 100)]
