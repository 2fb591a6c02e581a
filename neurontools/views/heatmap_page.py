"""The heat map page: utilization of every core over time, which makes stragglers and stalls visible."""

from __future__ import annotations

from functools import cache
from itertools import groupby

from neurontools.client.samples import CoreStep, TimeAxis, mean_of_cores
from neurontools.model import LogicalNeuronCore
from neurontools.util import units
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.lines import LOADS, SELECTED, Line, Run, TextPage, append_run, fit, load_style, styled
from neurontools.views.drawing.plots import (
    backfill_text,
    clock_line,
    event_line,
    event_marks,
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
    process_part = "" if context.pid is None else f" of PID {context.pid}"
    title = f"Utilization of {len(cores)} NeuronCore{'s' * (len(cores) != 1)}{process_part} over time"
    page = TextPage([heading(context, title, width, about), _legend_line(context, width)])
    axis = time_axis(context, width)
    if axis is None or context.series is None:
        page.add_lines(fit(((f"  {backfill_text(context) or 'no history yet'}", "dim"),), width))
        return page
    foot = [event_line(context, axis, width), clock_line(context, axis, width)] if height >= _LEAST_FOOT_HEIGHT else []
    # Each time interval, with the number of adjacent cells that show it.
    intervals = groupby(context.series.core_steps(axis), key=id)
    stretches = [(same[0], len(same)) for _, group in intervals if (same := list(group))]
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


def _legend_line(context: RenderContext, width: int) -> Line:
    glyphs = context.glyphs
    runs: list[Run] = [(" free ", "dim"), (glyphs.free, "dim"), ("  held and idle ", "dim"), (glyphs.held, "held")]
    runs.append(("  0% ", "dim"))
    levels = len(glyphs.heat)
    runs += [(glyph, load_style((position + 0.5) / levels, 0.0)) for position, glyph in enumerate(glyphs.heat)]
    runs.append((" 100%  no data: empty", "dim"))
    return fit(runs, width)


def _core_line(
    context: RenderContext,
    core: LogicalNeuronCore,
    stretches: list[tuple[CoreStep | None, int]],
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
    by_value = _value_cells(context.glyphs, context.thresholds.idle_below_ratio)
    runs: list[Run] = []
    for step, cells in stretches:
        glyph, style = _step_cell(context.glyphs, by_value, step, first, count)
        append_run(runs, glyph * cells, style)
    own = tuple(event for event in context.events if event.core_index == core.index)
    for position, mark in event_marks(own, axis, context.glyphs).items() if own else ():
        runs = _replace_cell(runs, position, mark)
    return fit(((f"{name:<{left}}"[:left], "label" if is_first else "dim"), *runs), width)


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
