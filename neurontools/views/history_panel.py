"""The history panel of the overview: a chosen metric and HBM over time, for the whole host or groups of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.client.samples import Curve, HostQuantity, TimeAxis
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.glyphs import memory_style
from neurontools.views.drawing.heat_scale import load_style
from neurontools.views.drawing.lines import BLANK, Line, Run, TextPage, fit
from neurontools.views.drawing.plots import (
    backfill_text,
    clock_line,
    event_line,
    plot_columns,
    round_up_scale,
    window_text,
)
from neurontools.views.drawing.render_context import RenderContext, heading

LEAST_LINES = 3
_LEAST_LINES_WITH_TIMES = 6
_LEAST_WINDOW_SECONDS = 300.0
_LEAST_CELL_SECONDS = 5.0  # with shorter cells, the plots would move and be drawn again at nearly every tick
_SIDE_BY_SIDE_CELLS = 90
_GROUP_LINES = 8  # least lines of each plot if there are several groups of devices
_MOST_GROUPS = 4
_LABEL_CELLS = 5  # cells of a scale label such as "100% "
_TOPS = (0.05, 0.1, 0.2, 0.5, 1.0)
_BASES = (0.9, 0.8, 0.5)


@dataclass(frozen=True, slots=True)
class _DeviceGroup:
    name: str
    core_ranges: tuple[range, ...] = ()  # indices of physical cores; () means all cores
    memory_bytes: int = 0
    pid: int | None = None


def history_panel(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the panel in exactly `height` lines, of which it needs at least LEAST_LINES."""
    halves = (width // 2, width - width // 2) if width >= _SIDE_BY_SIDE_CELLS else (width,)
    cells = halves[0] - _LABEL_CELLS - 1  # both halves have the same axis, so that they share its steps
    window_seconds = max(context.window_seconds, _LEAST_WINDOW_SECONDS, _round_minutes(cells * _LEAST_CELL_SECONDS))
    about = backfill_text(context) or context.key_hint("l: ") + window_text(window_seconds)
    series = context.series
    if series is None or not len(series):
        page = TextPage([heading(context, "History", width, about)])
        page.add_lines(fit(((f"  {backfill_text(context) or 'no history yet'}", "dim"),), width))
        return _filled(page, height)
    axis = series.axis(cells, window_seconds, context.snapshot.taken_at_unix_seconds)
    feet = (event_line, clock_line) if height >= _LEAST_LINES_WITH_TIMES else ()
    groups = _groups(context, axis, height - len(feet))
    names = (context.plot_metric, "utilization" if context.plot_metric == "memory" else "memory")
    page = TextPage()
    for number, group in enumerate(groups):
        room = height - len(feet)
        lines = (number + 1) * room // len(groups) - number * room // len(groups)
        plots = [_PLOTS[name] for name in names[: len(halves)]]
        notes = [context.key_hint("M: metric"), about] if number == 0 else ["", ""]
        drawn = [
            plot(context, group, axis, cells, lines, note)
            for plot, cells, note in zip(plots, halves, notes[-len(halves) :], strict=True)
        ]
        page.add_lines(*(tuple(run for part in parts for run in part) for parts in zip(*drawn, strict=True)))
    for foot in feet:
        line = foot(context, axis, halves[0], _LABEL_CELLS)
        page.add_lines(fit(line * len(halves), width))
    return _filled(page, height)


def _filled(page: TextPage, height: int) -> TextPage:
    page.add_lines(*[BLANK] * (height - len(page.lines)))
    return page


def _groups(context: RenderContext, axis: TimeAxis, height: int) -> list[_DeviceGroup]:
    """Returns the groups of devices that get a plot each: one group, or more if there is room.

    Leaves out hidden devices, and devices that were free during the whole time of the axis unless all were.
    """
    if context.pid is not None:
        return [_DeviceGroup(f"PID {context.pid}", pid=context.pid)]
    if context.plot_metric == "executions":  # processes report executions, so devices have none of their own
        return [_DeviceGroup("the host")]
    per_device = context.snapshot.instance.physical_cores_per_device
    shown = [
        (device, range(device.index * per_device, (device.index + 1) * per_device))
        for device in context.snapshot.devices
        if device.index not in context.figures.hidden_devices
    ]
    series, since_seconds = context.series, axis.begins_seconds
    used = [each for each in shown if series is not None and series.were_used(each[1], since_seconds)]
    count = max(1, min(_MOST_GROUPS, len(used), height // _GROUP_LINES))
    devices = used or shown
    if count == 1 and len(devices) == len(context.snapshot.devices):
        return [_DeviceGroup("all cores", memory_bytes=sum(device.memory_bytes for device, _ in devices))]
    size = -(-len(devices) // count)
    groups = []
    for at in range(0, len(devices), size):
        part = devices[at : at + size]
        memory_bytes = sum(device.memory_bytes for device, _ in part)
        name = f"ND {ranges_text(device.index for device, _ in part)}"
        groups.append(_DeviceGroup(name, tuple(cores for _, cores in part), memory_bytes))
    return groups


def _utilization_plot(
    context: RenderContext, group: _DeviceGroup, axis: TimeAxis, width: int, height: int, note: str
) -> list[Line]:
    curve = _curve(context, group, "utilization_ratio", axis)
    title = heading(context, f"Utilization of {group.name}: {units.percent_text(curve.latest, 0)}", width, note)
    idle = context.thresholds.idle_below_ratio
    return [title, *_plot_lines(context, curve, 1.0, lambda value: load_style(value, idle), width, height - 1)]


def _memory_plot(
    context: RenderContext, group: _DeviceGroup, axis: TimeAxis, width: int, height: int, note: str
) -> list[Line]:
    capacity_bytes = group.memory_bytes or sum(device.memory_bytes for device in context.snapshot.devices)
    curve = _curve(context, group, "memory_bytes", axis)
    used = None if curve.latest is None else int(curve.latest)
    title = f"HBM of {group.name}: {units.bytes_text(used)} of {units.memory_size_text(capacity_bytes)}"
    lines = _plot_lines(context, curve, float(capacity_bytes), memory_style, width, height - 1)
    return [heading(context, title, width, note), *lines]


def _flops_plot(
    context: RenderContext, group: _DeviceGroup, axis: TimeAxis, width: int, height: int, note: str
) -> list[Line]:
    curve = _curve(context, group, "flops_per_second", axis)
    title = f"FLOPS of {group.name}: {units.flops_text(curve.latest)}"
    return [heading(context, title, width, note), *_rate_lines(context, curve, width, height - 1)]


def _executions_plot(
    context: RenderContext, group: _DeviceGroup, axis: TimeAxis, width: int, height: int, note: str
) -> list[Line]:
    curve = _curve(context, group, "executions_per_second", axis)
    latest = units.UNKNOWN if curve.latest is None else f"{curve.latest:.1f}"
    title = f"Executions of {group.name}: {latest}/s"
    return [heading(context, title, width, note), *_rate_lines(context, curve, width, height - 1)]


_PLOTS = {
    "utilization": _utilization_plot,
    "flops": _flops_plot,
    "executions": _executions_plot,
    "memory": _memory_plot,
}
"""Functions that draw a plot, by the names of PLOT_METRICS."""


def _rate_lines(context: RenderContext, curve: Curve, width: int, rows: int) -> list[Line]:
    whole = round_up_scale(curve.highest or 0.0, is_binary=False)
    return _plot_lines(context, curve, whole, lambda _: "spark", width, rows, lambda share: _rate_label(share * whole))


def _rate_label(value: float) -> str:
    """Formats a rate in at most 4 characters: "0", "0.5", "48", "2K", "1.5T", "12T"."""
    if 0 < value < 1:
        return f"{value:.2g}"
    text = units.short_flops_text(value, 1).replace(".0", "")
    return text if len(text) <= 4 else units.short_flops_text(value, 0)


def _curve(context: RenderContext, group: _DeviceGroup, name: str, axis: TimeAxis) -> Curve:
    assert context.series is not None  # noqa: S101 - the axis is of a series
    quantity = HostQuantity(name, group.core_ranges, group.pid)
    return context.series.curve(quantity, axis, 2 if context.glyphs.is_dotted else 1)


def _plot_lines(
    context: RenderContext,
    curve: Curve,
    whole: float,
    style: Callable[[float], str],
    width: int,
    rows: int,
    label_of: Callable[[float], str] | None = None,
) -> list[Line]:
    """Draws a curve in `rows` lines. Its values are parts of `whole`.

    With `label_of`, the scale goes from 0 to `whole`, and `label_of` makes the labels of both ends. Without it, the
    scale is in percent and fits the curve. `style` chooses the colour of a line from the share in its middle.
    """
    known = [value for value in curve.values if value is not None] if whole > 0 else []
    base, top = value_range([min(known) / whole, max(known) / whole] if known and label_of is None else [])
    label_of = label_of or "{:.0%}".format
    least = base * whole
    shifted = [None if value is None or not known else value - least for value in curve.values]
    columns = plot_columns(shifted, rows, context.glyphs, (top - base) * whole)
    labels = {0: f"{label_of(top):>4} ", rows - 1: f"{label_of(base):>4} "}
    lines: list[Line] = []
    for row, text in enumerate(columns):
        middle = base + (rows - row - 0.5) / rows * (top - base)
        label: Run = (labels.get(row, " " * _LABEL_CELLS), "dim")
        lines.append(fit((label, (text, style(middle))), width))
    return lines


def _round_minutes(seconds: float) -> float:
    """Rounds a time up to whole minutes, which the heading shows."""
    return -(-seconds // 60) * 60


def value_range(values: list[float]) -> tuple[float, float]:
    """Returns the ends of a scale, from 0 to 1, that shows small changes of these shares.

    The scale begins above 0 if all values are high, and ends below 1 if all values are low.
    """
    if not any(values):
        return 0.0, 1.0
    lowest, highest = min(values), max(values)
    top = next((top for top in _TOPS if highest <= top), 1.0)
    if top < 1.0:
        return 0.0, top
    return next((base for base in _BASES if lowest >= base + 0.1 * (1.0 - base)), 0.0), top
