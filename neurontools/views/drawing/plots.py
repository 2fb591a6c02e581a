"""Plots over time with their shared axis: clock times, event marks and gaps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from neurontools.client.events import EventSeverity, HostEvent
from neurontools.client.samples import Curve, HostQuantity, TimeAxis
from neurontools.util import units
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.lines import Line, Run, append_run, cell, fit
from neurontools.views.drawing.render_context import RenderContext, heading, shown_events

_LEAST_PLOT = 4  # least lines of a plot, including its heading
_LEFT_DOTS = (0, 0x40, 0x44, 0x46, 0x47)  # bits of the left half of a braille character, with 0 to 4 dots from below
_RIGHT_DOTS = (0, 0x80, 0xA0, 0xB0, 0xB8)
_BRAILLE = 0x2800
_MIDDLE_ROWS = 5  # plots with at least this many rows also label the middle of the scale
_TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_LABEL_GAP = 4  # least terminal cells between two clock times
_NO_DATA = "no data"
_SEVERITY_RANKS = {EventSeverity.INFO: 0, EventSeverity.WARNING: 1, EventSeverity.CRITICAL: 2}


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one quantity over time. `text` formats a value.

    `highest` is the value at the top of the scale. If it is None, the scale fits the highest drawn value.
    """

    title: str
    quantity: HostQuantity
    highest: float | None
    text: Callable[[float], str]
    style: str = "spark"


def plot_lines(context: RenderContext, plots: Sequence[Plot], axis: TimeAxis, width: int, height: int) -> list[Line]:
    """Draws the plots one below the other, as many as fit in `height` lines, then the event line and the clock line."""
    foot = [event_line(context, axis, width), clock_line(context, axis, width)] if height > _LEAST_PLOT + 1 else []
    room = height - len(foot)
    count = max(1, min(len(plots), room // _LEAST_PLOT))
    lines: list[Line] = []
    for number, plot in enumerate(plots[:count]):
        rows = (number + 1) * room // count - number * room // count
        lines += _one_plot(context, plot, axis, width, rows)
    return [*lines, *foot][: max(0, height)]


def percent_label(value: float) -> str:
    return units.percent_text(value, 0)


def bytes_label(value: float) -> str:
    return units.bytes_text(int(value))


def window_text(seconds: float) -> str:
    """Formats the time window of a plot, such as `last 15 min`."""
    return f"last {seconds / 60:.0f} min" if seconds < 3600 else f"last {seconds / 3600:.0f} h"


def plot_columns(values: Sequence[float | None], rows: int, glyphs: Glyphs, highest: float) -> list[str]:
    """Draws a filled curve as lines of text. A braille cell shows two values, a block cell one. None leaves a gap."""
    unit = 4 if glyphs.is_dotted else len(glyphs.levels) - 1
    scale = rows * unit / highest if highest > 0 else 0.0
    # Draws 0 with the lowest dot or block, so that it differs from a gap.
    heights = [-1 if value is None else max(1, min(rows * unit, round(value * scale))) for value in values]
    return _drawn_columns(tuple(heights), rows, glyphs)


@lru_cache(64)
def _drawn_columns(heights: tuple[int, ...], rows: int, glyphs: Glyphs) -> list[str]:
    """Draws a curve of `heights` in dots or block levels. Cached, because few curves move by a dot each second."""
    if glyphs.is_dotted:
        found = [_braille_column(left, right, rows) for left, right in zip(heights[::2], heights[1::2], strict=True)]
    else:
        found = [_block_column(height, rows, glyphs.levels) for height in heights]
    return ["".join(line) for line in zip(*found, strict=True)]


@lru_cache(4096)
def _braille_column(left: int, right: int, rows: int) -> str:
    """Returns one column of a plot in braille, top first. `left` and `right` are the heights of its halves in dots."""
    floors = range(4 * (rows - 1), -1, -4)
    cells = (_LEFT_DOTS[max(0, min(4, left - at))] + _RIGHT_DOTS[max(0, min(4, right - at))] for at in floors)
    return "".join(chr(_BRAILLE + dots) if dots else " " for dots in cells)


@lru_cache(4096)
def _block_column(height: int, rows: int, levels: str) -> str:
    """Returns one column of a plot in block characters, top first. `height` is in block levels."""
    unit = len(levels) - 1
    return "".join(levels[max(0, min(unit, height - at))] for at in range(unit * (rows - 1), -1, -unit))


def _one_plot(context: RenderContext, plot: Plot, axis: TimeAxis, width: int, height: int) -> list[Line]:
    assert context.series is not None  # noqa: S101 - an axis is of a series
    curve = context.series.curve(plot.quantity, axis, 2 if context.glyphs.is_dotted else 1)
    lines = [_plot_heading(context, plot, curve, width)]
    rows = height - 1
    top = plot.highest or round_up_scale(curve.highest or 0.0, is_binary=plot.quantity.name == "memory_bytes")
    left = scale_cells(width)
    for number, line in enumerate(plot_columns(curve.values, max(0, rows), context.glyphs, top)):
        mark = ""
        if number == 0:
            mark = plot.text(top)
        elif number == rows - 1:
            mark = "0"
        elif number == rows // 2 and rows >= _MIDDLE_ROWS:
            mark = plot.text(top / 2)
        scale: Line = ((f"{mark:>{left - 1}} ", "dim"),) if left else ()
        lines.append(fit((*scale, (line, plot.style)), width))
    return lines


def _plot_heading(context: RenderContext, plot: Plot, curve: Curve, width: int) -> Line:
    def value_text(value: float | None) -> str:
        return "-" if value is None else plot.text(value)

    text = f"{plot.title} {value_text(curve.latest)}"
    figures = f"min {value_text(curve.lowest)}  mean {value_text(curve.mean)}  max {value_text(curve.highest)}"
    span = window_text(context.window_seconds)
    for right in (f"{figures}  {span}", figures, span):
        if len(text) + len(right) + 8 <= width:
            break
    return heading(context, text, width, right)


def round_up_scale(value: float, *, is_binary: bool) -> float:
    """Rounds the top of a scale up to a power of 2 if `is_binary`, else to 1, 2 or 5 times a power of 10."""
    if value <= 0:
        return 1.0
    base = 1.0
    if is_binary:
        while base < value:
            base *= 2
        return base
    while base < value:
        base *= 10
    while base / 10 >= value:
        base /= 10
    return next(base * part for part in (0.1, 0.2, 0.5, 1.0) if base * part >= value)


def scale_cells(width: int) -> int:
    """Returns the width of the scale labels at the left of each plot on a page that is `width` cells wide."""
    return 20 if width >= 60 else 10 if width >= 30 else 0


def time_axis(context: RenderContext, width: int) -> TimeAxis | None:
    """Returns the time axis for the plots of a page; None while there is no history."""
    series = context.series
    if series is None or not len(series):
        return None
    cells = width - scale_cells(width) - 1
    return series.axis(cells, context.window_seconds, context.snapshot.taken_at_unix_seconds)


def backfill_text(context: RenderContext) -> str:
    """Returns a note such as "loading history…" while a backfill runs, else ""."""
    return f"loading history{context.glyphs.ellipsis}" if context.clock.is_loading_past else ""


def clock_line(context: RenderContext, axis: TimeAxis, width: int, left: int | None = None) -> Line:
    """Draws the line below plots that labels the time axis with clock times at round intervals.

    `left` is the number of cells before the axis; None: as many as the scale labels of a page have.
    """
    cells = [" "] * axis.cells
    labelled = ((step, (9 if step < 60 else 6) + _LABEL_GAP) for step in _TICK_SECONDS)
    step = next((step for step, cells in labelled if cells <= step / axis.cell_seconds), 86_400)
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    offset_seconds = axis.clock_offset_seconds
    first = int((axis.begins_seconds + offset_seconds) // step) + 1
    free = 0
    for number in range(first, first + axis.cells):
        at = axis.cell_at(number * step - offset_seconds)
        if at is None:
            break
        label = context.glyphs.tick + time.strftime(form, time.localtime(number * step))
        if at >= free and at + len(label) <= axis.cells:
            cells[at : at + len(label)] = label
            free = at + len(label) + 1
    return fit(((" " * (scale_cells(width) if left is None else left), "dim"), ("".join(cells), "dim")), width)


def event_line(context: RenderContext, axis: TimeAxis, width: int, left: int | None = None) -> Line:
    """Draws the event line of a time axis: a mark for the most severe event per cell, and "no data" in gaps.

    `left` is the number of cells before the axis; None: as many as the scale labels of a page have.
    """
    events = shown_events(context, context.pid if context.details_pid is None else context.details_pid)
    marks = event_marks(events, axis, context.glyphs)
    gaps = _gap_labels(axis)
    runs: list[Run] = [] if marks else [(gaps, "dim")]
    for position, gap in enumerate(gaps if marks else ""):
        append_run(runs, *marks.get(position, (gap, "dim")))
    label = cell(" events", scale_cells(width)) if left is None else cell("event", left)
    return fit(((label, "label"), *runs), width)


def event_marks(events: tuple[HostEvent, ...], axis: TimeAxis, glyphs: Glyphs) -> dict[int, Run]:
    """Returns the mark of the most severe event in each cell of a time axis, by cell."""
    found: dict[int, int] = {}
    for event in reversed(events):
        if event.at_seconds < axis.begins_seconds:
            break
        for at_seconds in event.marks_at_seconds or (event.at_seconds,):
            position = axis.cell_at(at_seconds)
            if position is not None:
                found[position] = max(found.get(position, 0), _SEVERITY_RANKS[event.severity])
    marks: tuple[Run, ...] = ((glyphs.info, "label"), (glyphs.warn, "warn"), (glyphs.bad, "bad"))
    return {position: marks[rank] for position, rank in found.items()}


def _gap_labels(axis: TimeAxis) -> str:
    """Returns a text as wide as the time axis, with "no data" in each gap that is wide enough."""
    steps = axis.steps()
    words = [" "] * axis.cells
    begin: int | None = None
    for position in range(axis.cells + 1):
        is_gap = position < axis.cells and steps[position] is None
        if is_gap and begin is None:
            begin = position
        elif not is_gap and begin is not None:
            room = position - begin
            if begin > 0 and room >= len(_NO_DATA) + 2:
                at = begin + (room - len(_NO_DATA)) // 2
                words[at : at + len(_NO_DATA)] = _NO_DATA
            begin = None
    return "".join(words)
