"""Pictures in pages, as SVG: charts over time, the heat map of all cores, and the links between devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from neurontools.client.samples import CoreStep, HostQuantity, TimeAxis, mean_of_cores
from neurontools.model import LogicalNeuronCore
from neurontools.util.units import clock_text
from neurontools.views.drawing.heat_scale import BOUNDS, heat_step, load_style
from neurontools.views.drawing.lines import LOADS
from neurontools.views.drawing.plots import event_marks
from neurontools.views.drawing.render_context import RenderContext, shown_events
from neurontools.views.history_panel import value_range
from neurontools.web.nodes import Node, node

CELLS = 60  # time steps of a chart
_WIDTH, _HEIGHT = 600, 120
_ROW_HEIGHT = 12


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one quantity. `top` is its largest possible value; None: the scale fits the highest drawn value."""

    title: str
    quantity: HostQuantity
    top: float | None
    text: Callable[[float], str]


def time_axis(context: RenderContext) -> TimeAxis | None:
    """Returns the axis of the page's charts; None while there is no history."""
    series = context.series
    if series is None or not len(series):
        return None
    return series.axis(CELLS + 1, context.window_seconds * (CELLS + 1) / CELLS, context.snapshot.taken_at_unix_seconds)


def charts(context: RenderContext, shown: Iterable[Chart]) -> Node:
    """Builds the charts, or a note while there is no history."""
    axis = time_axis(context)
    if axis is None:
        return node("p", "no history yet", class_="dim")
    marks = event_marks(shown_events(context, context.details_pid), axis, context.glyphs)
    return node("div", *[_chart(context, chart, axis, marks) for chart in shown], class_="charts")


def _chart(context: RenderContext, chart: Chart, axis: TimeAxis, marks: dict[int, tuple[str, str]]) -> Node:
    assert context.series is not None  # noqa: S101 - the axis is of a series
    curve = context.series.curve(chart.quantity, axis)
    # The last cell is not complete. Without it, a chart changes once a cell and not once a second.
    values = curve.values[:-1]
    known = [value for value in values if value is not None]
    whole = chart.top or max(known, default=0.0) or 1.0
    base, top = value_range([min(known) / whole, max(known) / whole] if known else [])
    low, high = base * whole, top * whole

    def y(value: float) -> str:
        return f"{_HEIGHT - 2 - (value - low) / (high - low) * (_HEIGHT - 4):.0f}"

    step = _WIDTH / CELLS
    drawn: list[Node] = []
    for is_known, run in groupby(enumerate(values), key=lambda pair: pair[1] is not None):
        if is_known:
            points = [(round((at + 0.5) * step), y(value)) for at, value in run if value is not None]
            line = " ".join(f"{x},{at}" for x, at in points)
            area = f"M{points[0][0]},{_HEIGHT}L{line}L{points[-1][0]},{_HEIGHT}z"
            drawn += [node("path", d=area, class_="area"), node("polyline", points=line, class_="line")]
    for at, (_, style) in marks.items():
        if at < CELLS:
            drawn.append(node("path", d=f"M{round((at + 0.5) * step)},0v{_HEIGHT}", class_=f"mark {style}"))
    texts = ["" if value is None else chart.text(value) for value in values]
    latest = "unknown" if curve.latest is None else chart.text(curve.latest)
    picture = node(
        "svg",
        *drawn,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title} over time, from {chart.text(min(known))} to {chart.text(max(known))}"
        if known
        else f"{chart.title}: no data",
        data_values="|".join(texts),
        data_from=round(axis.begins_seconds + axis.clock_offset_seconds),
        data_step=axis.cell_seconds,
    )
    return node(
        "figure",
        node("figcaption", f"{chart.title} ", node("b", latest), node("output", aria_hidden="true")),
        node(
            "div",
            picture,
            node("span", chart.text(high), class_="top"),
            node("span", chart.text(low), class_="base"),
            class_="plot",
        ),
        _clock_row(axis),
    )


def _clock_row(axis: TimeAxis) -> Node:
    begin = axis.begins_seconds + axis.clock_offset_seconds
    times = (begin, begin + CELLS / 2 * axis.cell_seconds, begin + CELLS * axis.cell_seconds)
    return node("div", *[node("span", clock_text(each)) for each in times], class_="clock dim")


def heat_map(context: RenderContext, cores: Sequence[LogicalNeuronCore]) -> Node:
    """Builds the heat map: a row for each core, a column for each time step, and a colour for the utilization."""
    axis = time_axis(context)
    if axis is None or context.series is None or not cores:
        return node("p", "no history yet", class_="dim")
    steps = context.series.core_steps(axis)[:-1]
    paths: dict[str, list[str]] = {}
    labels: list[Node] = []
    for row, core in enumerate(cores):
        styles = [_cell_style(context, step, core) for step in steps]
        at = 0
        for style, run in groupby(styles):
            length = len(list(run))
            if style:
                paths.setdefault(style, []).append(f"M{at} {row}h{length}v1h-{length}z")
            at += length
        if not row or cores[row - 1].device_index != core.device_index:
            labels.append(node("text", f"ND {core.device_index}", x="-0.4", y=row + 0.9, text_anchor="end"))
    drawn = [
        node("path", d="".join(found), class_=style, data_label=STEP_NAMES[style])
        for style, found in sorted(paths.items())
    ]
    picture = node(
        "svg",
        *drawn,
        viewBox=f"0 0 {CELLS} {len(cores)}",
        preserveAspectRatio="none",
        height=max(160, _ROW_HEIGHT * len(cores)),
        role="img",
        aria_label=f"Utilization of {len(cores)} NeuronCores over time",
        data_rows="|".join(f"ND {core.device_index} NC {core.index}" for core in cores),
        data_from=round(axis.begins_seconds + axis.clock_offset_seconds),
        data_step=axis.cell_seconds,
    )
    names = [node("span", f"ND {device}") for device, _ in groupby(core.device_index for core in cores)]
    return node(
        "figure",
        node("figcaption", legend(), node("output", aria_hidden="true")),
        node("div", node("div", *names, class_="names dim"), picture, class_="heat"),
        _clock_row(axis),
        class_="wide-figure",
    )


def _step_names() -> dict[str, str]:
    edges = (0, *(round(100 * bound) for bound in BOUNDS), 100)
    names = {style: f"{low} to {high} %" for style, low, high in zip(LOADS, edges, edges[1:], strict=False)}
    return names | {"held": "held and idle", "free": "free", "unknown": "unknown"}


STEP_NAMES = _step_names()
"""Names of the steps of the heat scale and of the other states of a core, by CSS class."""


def core_class(ratio: float | None, is_held: bool, idle_below_ratio: float) -> str:
    """Returns the CSS class of a core: a step of the heat scale, "held", "free" or "unknown"."""
    if not is_held and not ratio:
        return "free"
    if ratio is None:
        return "unknown"
    return load_style(ratio, idle_below_ratio) if is_held else LOADS[heat_step(ratio)]


def _cell_style(context: RenderContext, step: CoreStep | None, core: LogicalNeuronCore) -> str:
    first, count = core.cores[0].index, len(core.cores)
    if step is None or first >= len(step.means):
        return ""
    is_held = any(step.owners[first : first + count])
    return core_class(mean_of_cores(step, first, count), is_held, context.thresholds.idle_below_ratio)


def legend() -> Node:
    """Builds the legend of the heat scale."""
    return node(
        "ul",
        *[
            node("li", node("i", class_=f"core {style}"), name)
            for style, name in STEP_NAMES.items()
            if style != "unknown"
        ],
        class_="legend",
        aria_label="Colours by utilization",
    )


@dataclass(frozen=True, slots=True)
class LinkedDevice:
    """A device in the picture of links: its place, CSS class and text, and the URL that it leads to."""

    index: int
    column: int
    row: int
    style: str
    text: str
    link: str
    is_selected: bool


def link_picture(devices: Sequence[LinkedDevice], links: Sequence[Sequence[int]], name: str) -> Node:
    """Draws devices as boxes, and their links. A link to a device that is not beside it leaves the box as a curve."""
    places = {device.index: device for device in devices}
    lines: list[Node] = [
        node("path", d=_link_path(places[index], places[other]), class_="link")
        for index, others in enumerate(links)
        for other in others
        if index < other and index in places and other in places
    ]
    boxes: list[Node] = [
        node(
            "a",
            node("rect", x=_x(device), y=_y(device), width=_BOX_WIDTH, height=_BOX_HEIGHT, rx="6", class_=device.style),
            node("text", f"ND {device.index}", x=_x(device) + _BOX_WIDTH / 2, y=_y(device) + 19),
            node("text", device.text, x=_x(device) + _BOX_WIDTH / 2, y=_y(device) + 37),
            href=device.link,
            class_="selected" if device.is_selected else None,
            aria_current="true" if device.is_selected else None,
        )
        for device in devices
    ]
    columns = 1 + max(device.column for device in devices)
    rows = 1 + max(device.row for device in devices)
    picture = node(
        "svg",
        *lines,
        *boxes,
        viewBox=f"0 0 {columns * _COLUMN} {rows * _ROW}",
        width=columns * _COLUMN,
        height=rows * _ROW,
        class_="links",
        role="group",
        aria_label=name,
    )
    return node("div", picture, class_="scroll", tabindex="0", role="region", aria_label=f"Picture: {name}")


_COLUMN, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 150, 84, 112, 48


def _x(device: LinkedDevice) -> float:
    return device.column * _COLUMN + (_COLUMN - _BOX_WIDTH) / 2


def _y(device: LinkedDevice) -> float:
    return device.row * _ROW + (_ROW - _BOX_HEIGHT) / 2


def _link_path(one: LinkedDevice, other: LinkedDevice) -> str:
    x, y = _x(one) + _BOX_WIDTH / 2, _y(one) + _BOX_HEIGHT / 2
    end_x, end_y = _x(other) + _BOX_WIDTH / 2, _y(other) + _BOX_HEIGHT / 2
    is_near = abs(one.column - other.column) + abs(one.row - other.row) <= 1
    if is_near:
        return f"M{x:g} {y:g}L{end_x:g} {end_y:g}"
    bow_x, bow_y = (0, -_ROW * 0.46) if one.row == other.row else (-_COLUMN * 0.46, 0)
    return f"M{x:g} {y:g}C{x + bow_x:g} {y + bow_y:g} {end_x + bow_x:g} {end_y + bow_y:g} {end_x:g} {end_y:g}"
