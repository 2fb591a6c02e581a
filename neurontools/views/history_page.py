"""The history page: plots of the selected device or core over time, and sparklines of the whole host."""

from __future__ import annotations

from neurontools.client.samples import HostQuantity, TimeAxis
from neurontools.model.health import verdicts
from neurontools.util import units
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.glyphs import sparkline
from neurontools.views.drawing.lines import ClickTarget, Line, Run, TextPage, cell, fit, printable, width_of
from neurontools.views.drawing.plots import (
    Plot,
    backfill_text,
    bytes_label,
    percent_label,
    plot_lines,
    scale_cells,
    time_axis,
    window_text,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, heading

_NAME_CELLS = 10


def history_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws plots of the selected device or core over time, below sparklines of the whole host or the tab's process."""
    page = TextPage()
    page.append_page(_selection_bar(context, width))
    axis = time_axis(context, width)
    if axis is None:
        page.add_lines(fit(((f"  {backfill_text(context) or 'no history yet'}", "dim"),), width))
        return page
    if height >= 12:
        page.add_lines(*_total_lines(context, axis, width))
    device = context.device_index
    per_device = context.snapshot.instance.physical_cores_per_device
    first, cores = device * per_device, per_device
    name = f"ND {device}"
    for core in context.figures.cores:
        if core.index == context.core_index and core.device_index == device:
            first, cores, name = core.cores[0].index, len(core.cores), f"ND {device} NC {core.index}"
    memory = context.snapshot.devices[device].memory_bytes if device < len(context.snapshot.devices) else 0
    memory = memory * cores // per_device if per_device else memory
    chosen = {"first_core": first, "core_count": max(1, cores)}
    plots = (
        Plot(f"{name} utilization", HostQuantity("utilization_ratio", **chosen), 1.0, percent_label),
        Plot(f"{name} device memory", HostQuantity("memory_bytes", **chosen), float(memory), bytes_label, "memory"),
        Plot(f"{name} FLOPS", HostQuantity("flops_per_second", **chosen), None, units.flops_text),
    )
    page.add_lines(*plot_lines(context, plots, axis, width, height - len(page.lines)))
    return page


def device_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the devices as search entries, with their names, findings and processes."""
    wrong: dict[int, str] = {}
    for verdict in verdicts(context.snapshot):
        wrong[verdict.device_index] = " ".join(printable(finding.reason) for finding in verdict.findings)
    holders: dict[int, list[ProcessFigures]] = {}
    for figures in context.figures.by_pid.values():
        for index in figures.process.device_indices:
            holders.setdefault(index, []).append(figures)
    return [
        SearchEntry(
            str(device.index),
            f"ND{device.index} ND {device.index} {device.bdf or ''} {wrong.get(device.index, '')}",
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
    of_tab = {
        device for figures in context.figures.tab_figures(context.pid) for device in figures.process.device_indices
    }
    for device in context.snapshot.devices:
        text = f" {device.index} "
        is_of_tab = context.pid is not None and device.index in of_tab
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
    series = context.series
    assert series is not None  # noqa: S101 - the axis is of it
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
        curve = series.curve(quantity, axis)
        latest = "-" if curve.latest is None else text(curve.latest)
        shown = cell(f" {name}", left)
        if left > _NAME_CELLS + 1:
            shown = cell(f" {name}", left - 1 - width_of(latest)) + latest + " "
        drawn = sparkline(curve.values, axis.cells, context.glyphs, top or curve.highest or 1.0)
        lines.append(fit(((shown, "label"), (drawn, "spark")), width))
    return lines
