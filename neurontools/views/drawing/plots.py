"""Plots over time: each with heading and scale, below them events and clock, on the one axis that a page has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from neurontools.client.history.axis import Axis
from neurontools.client.history.quantities import Quantity
from neurontools.client.history.series import Curve
from neurontools.util import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, fit
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.time_axis import clock_line, event_line, scale_cells

_LEAST_PLOT = 4  # lines, its heading included
_LEFT_DOTS = (0, 0x40, 0x44, 0x46, 0x47)  # of a braille cell, filled from below
_RIGHT_DOTS = (0, 0x80, 0xA0, 0xB0, 0xB8)
_BRAILLE = 0x2800
_MIDDLE_ROWS = 5  # from so many on, the middle of the scale is told too


@dataclass(frozen=True, slots=True)
class Plot:
    """What a plot shows: up to `highest`, None for what its values need; `text` words one of them."""

    title: str
    quantity: Quantity
    highest: float | None
    text: Callable[[float], str]
    style: str = "spark"


def stacked(scene: Scene, plots: Sequence[Plot], axis: Axis, width: int, height: int) -> list[Line]:
    """As many of the plots as have room in `height` lines, below each other; then events and clock times."""
    foot = [event_line(scene, axis, width), clock_line(scene, axis, width)] if height > _LEAST_PLOT + 1 else []
    room = height - len(foot)
    count = max(1, min(len(plots), room // _LEAST_PLOT))
    lines: list[Line] = []
    for number, plot in enumerate(plots[:count]):
        rows = (number + 1) * room // count - number * room // count
        lines += _plot(scene, plot, axis, width, rows)
    return [*lines, *foot][: max(0, height)]


def percent(value: float) -> str:
    """A ratio as a scale words it."""
    return units.percent_text(value, 0)


def size(value: float) -> str:
    """Bytes as a scale words them."""
    return units.bytes_text(int(value))


def window_text(seconds: float) -> str:
    """A window, as `last 15 min`."""
    return f"last {seconds / 60:.0f} min" if seconds < 3600 else f"last {seconds / 3600:.0f} h"


def columns(values: Sequence[float | None], rows: int, glyphs: Glyphs, highest: float) -> list[str]:
    """A filled curve in lines of text: two values a cell where braille is drawn, else one; gaps stay empty."""
    unit = 4 if glyphs.is_dotted else len(glyphs.levels) - 1
    scale = rows * unit / highest if highest > 0 else 0.0
    # Nothing is drawn as a line at the bottom, so that it is not taken for a gap.
    heights = [-1 if value is None else max(1, min(rows * unit, round(value * scale))) for value in values]
    if glyphs.is_dotted:
        found = [_dots(left, right, rows) for left, right in zip(heights[::2], heights[1::2], strict=True)]
    else:
        found = [_blocks(height, rows, glyphs.levels) for height in heights]
    return ["".join(line) for line in zip(*found, strict=True)]


@lru_cache(4096)
def _dots(left: int, right: int, rows: int) -> str:
    """A column of cells from the top down, both halves filled so many dots high."""
    floors = range(4 * (rows - 1), -1, -4)
    cells = (_LEFT_DOTS[max(0, min(4, left - at))] + _RIGHT_DOTS[max(0, min(4, right - at))] for at in floors)
    return "".join(chr(_BRAILLE + dots) if dots else " " for dots in cells)


@lru_cache(4096)
def _blocks(height: int, rows: int, levels: str) -> str:
    """A column of cells from the top down, filled so many parts of a cell high."""
    unit = len(levels) - 1
    return "".join(levels[max(0, min(unit, height - at))] for at in range(unit * (rows - 1), -1, -unit))


def _plot(scene: Scene, plot: Plot, axis: Axis, width: int, height: int) -> list[Line]:
    assert scene.series is not None  # noqa: S101 - an axis is of a series
    curve = scene.series.curve(plot.quantity, axis, 2 if scene.glyphs.is_dotted else 1)
    lines = [_heading(scene, plot, curve, width)]
    rows = height - 1
    top = plot.highest or _round_above(curve.highest or 0.0, is_binary=plot.quantity.name == "memory")
    left = scale_cells(width)
    for number, line in enumerate(columns(curve.values, max(0, rows), scene.glyphs, top)):
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


def _heading(scene: Scene, plot: Plot, curve: Curve, width: int) -> Line:
    def worded(value: float | None) -> str:
        return "-" if value is None else plot.text(value)

    text = f"{plot.title} {worded(curve.latest)}"
    figures = f"min {worded(curve.lowest)}  mean {worded(curve.mean)}  max {worded(curve.highest)}"
    span = window_text(scene.window_seconds)
    for right in (f"{figures}  {span}", figures, span):
        if len(text) + len(right) + 8 <= width:
            break
    return heading(scene, text, width, right)


def _round_above(value: float, *, is_binary: bool) -> float:
    """A round number above the value, so that a scale stays the same while a value moves."""
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
