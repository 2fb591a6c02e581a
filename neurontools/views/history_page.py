"""The history page, which plots a device or core over time, and the heat map page, which shows all cores over time."""

from __future__ import annotations

from functools import cache
from itertools import groupby

from neurontools.client.samples import CoreStep, HostQuantity, TimeAxis, mean_of_cores
from neurontools.model import LogicalNeuronCore
from neurontools.model.health import verdicts
from neurontools.util import units
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.glyphs import Glyphs, sparkline
from neurontools.views.drawing.heat_scale import heat_glyph, heat_legend, heat_sparkline, load_style
from neurontools.views.drawing.lines import (
    ClickTarget,
    Line,
    Run,
    TextPage,
    append_run,
    cell,
    fit,
    printable,
    width_of,
)
from neurontools.views.drawing.plots import (
    Plot,
    backfill_text,
    bytes_label,
    clock_line,
    event_line,
    event_marks,
    percent_label,
    plot_lines,
    scale_cells,
    time_axis,
    window_text,
)
from neurontools.views.drawing.render_context import (
    RenderContext,
    SearchEntry,
    add_scrolled_list,
    heading,
    shown_devices,
)
from neurontools.views.history_document import core_range

_NAME_CELLS = 10
_LEAST_FOOT_HEIGHT = 6  # pages with at least this many lines show events and clock times below the heat map


def history_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws plots of the selected device or core over time, below sparklines of the whole host or the tab's process."""
    page = _selection_bar(context, width)
    axis = time_axis(context, width)
    if axis is None:
        page.add_lines(fit(((f"  {backfill_text(context) or 'no history yet'}", "dim"),), width))
        return page
    if height >= 12:
        page.add_lines(*_total_lines(context, axis, width))
    device = context.device_index
    per_device = context.snapshot.instance.physical_cores_per_device
    shown = context.figures.cores
    core = next(
        (core.index for core in shown if core.index == context.core_index and core.device_index == device), None
    )
    cores = core_range(context.snapshot, shown, device, core)
    name = f"ND {device}" if core is None else f"ND {device} NC {core}"
    memory = context.snapshot.devices[device].memory_bytes if device < len(context.snapshot.devices) else 0
    memory = memory * len(cores) // per_device if per_device else memory
    chosen = (cores,)
    plots = (
        Plot(f"{name} utilization", HostQuantity("utilization_ratio", chosen), 1.0, percent_label),
        Plot(f"{name} device memory", HostQuantity("memory_bytes", chosen), float(memory), bytes_label, "memory"),
        Plot(f"{name} FLOPS", HostQuantity("flops_per_second", chosen), None, units.flops_text),
    )
    page.add_lines(*plot_lines(context, plots, axis, width, height - len(page.lines)))
    return page


def device_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the devices as search entries, with their names, findings and processes."""
    reasons = {
        verdict.device_index: " ".join(printable(finding.reason) for finding in verdict.findings)
        for verdict in verdicts(context.snapshot)
    }
    holders: dict[int, list[ProcessFigures]] = {}
    for figures in context.figures.by_pid.values():
        for index in figures.process.device_indices:
            holders.setdefault(index, []).append(figures)
    return [
        SearchEntry(
            str(device.index),
            f"ND{device.index} ND {device.index} {device.bdf or ''} {reasons.get(device.index, '')}",
            tuple(holders.get(device.index, ())),
        )
        for device in context.snapshot.devices
    ]


def _selection_bar(context: RenderContext, width: int) -> TextPage:
    """Draws the clickable lists of devices and cores, with the selected ones highlighted."""
    about = backfill_text(context) or context.key_hint("l: ") + window_text(context.window_seconds)
    page = TextPage([heading(context, "History", width, about)])
    devices: list[Run] = [(" Device ", "label")]
    left = 8
    of_tab = shown_devices(context, context.pid) or ()
    for device in context.snapshot.devices:
        text = f" {device.index} "
        is_of_tab = device.index in of_tab
        style = "mine" if device.index == context.device_index else "text" if is_of_tab else "dim"
        devices.append((text, style))
        page.targets.append(ClickTarget(1, left, left + width_of(text), "device", str(device.index)))
        left += width_of(text)
    cores: list[Run] = [(" Core   ", "label"), (" all ", "mine" if context.core_index is None else "dim")]
    left = 13
    for core in context.figures.cores:
        if core.device_index == context.device_index:
            text = f" NC{core.index} "
            cores.append((text, "mine" if core.index == context.core_index else "dim"))
            page.targets.append(ClickTarget(2, left, left + width_of(text), "core", str(core.index)))
            left += width_of(text)
    page.add_lines(fit(devices, width), fit(cores, width))
    page.list_count, page.list_height = len(context.snapshot.devices), 4
    return page


def _total_lines(context: RenderContext, axis: TimeAxis, width: int) -> list[Line]:
    """Draws sparklines of utilization, memory and executions, for the whole host or for the tab's process."""
    assert context.series is not None  # noqa: S101 - the axis is part of the series
    pid = context.pid
    capacity = float(sum(device.memory_bytes for device in context.snapshot.devices)) if pid is None else 0.0
    rows = (
        ("all cores" if pid is None else f"PID {pid}", HostQuantity("utilization_ratio", pid=pid), 1.0, percent_label),
        ("memory", HostQuantity("memory_bytes", pid=pid), capacity, bytes_label),
        ("executed", HostQuantity("executions_per_second", pid=pid), 0.0, lambda value: f"{value:.1f}/s"),
    )
    left = scale_cells(width)
    lines = []
    for name, quantity, top, text in rows:
        curve = context.series.curve(quantity, axis)
        latest = "-" if curve.latest is None else text(curve.latest)
        shown = cell(f" {name}", left)
        if left > _NAME_CELLS + 1:
            shown = cell(f" {name}", left - 1 - width_of(latest)) + latest + " "
        if quantity.name == "utilization_ratio":
            drawn = heat_sparkline(curve.values, axis.cells, context.glyphs)
        else:
            text_drawn = sparkline(curve.values, axis.cells, context.glyphs, top or curve.highest or 1.0)
            drawn = [(text_drawn, "spark")]
        lines.append(fit(((shown, "label"), *drawn), width))
    return lines


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
    # Pairs of a time interval and the number of adjacent cells that show this interval.
    intervals = groupby(context.series.core_steps(axis), key=id)
    stretches = [(same[0], len(same)) for _, group in intervals if (same := list(group))]
    named_devices: set[int] = set()  # devices whose name an earlier line shows

    def line(position: int) -> Line:
        core = cores[position]
        is_first = core.device_index not in named_devices
        named_devices.add(core.device_index)
        return _core_line(context, core, stretches, axis, width, is_first=is_first)

    add_scrolled_list(context, page, len(cores), height - len(page.lines) - len(foot), line)
    page.add_lines(*foot)
    return page


def shown_cores(context: RenderContext) -> list[LogicalNeuronCore]:
    """Returns the cores of the page: all cores, or on a process's tab the cores that this process holds."""
    return [core for core in context.figures.cores if context.pid is None or context.pid in core.owner_pids]


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
    return fit((*runs, ("  busy ", "dim"), *heat_legend(glyphs), ("  no data: empty", "dim")), width)


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
    found = []
    for percent in range(101):
        style = load_style(percent / 100, idle_below_ratio)
        found.append((glyphs.held if style == "held" else heat_glyph(percent / 100, glyphs), style))
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
