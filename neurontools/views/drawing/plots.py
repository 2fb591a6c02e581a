"""Plots with a heading and a scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neurontools.text import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.gauge import plot
from neurontools.views.drawing.line import Line, fit
from neurontools.views.drawing.scene import Scene

_SCALE_CELLS = 13


def plot_with_scale(
    scene: Scene,
    title: str,
    values: Sequence[float | None],
    highest: float | None,
    text: Callable[[float], str],
    width: int,
    height: int,
    style: str = "spark",
) -> list[Line]:
    """A plot of `height` lines with its heading; `highest` None: up to the highest value."""
    known = [value for value in values if value is not None]
    top = highest if highest is not None else max(known, default=0.0) * 1.1
    latest = values[-1] if values else None
    label = f"{title} {text(latest) if latest is not None else '-'}"
    span = f"last {units.duration_text(scene.window_seconds)}"
    lines: list[Line] = [heading(scene, label, width, span)]
    rows = height - 1
    if rows <= 0:
        return lines
    scale = _SCALE_CELLS if width >= 40 else 0
    for number, line in enumerate(plot(values, width - scale - 1, rows, scene.glyphs, top or 1.0, style)):
        mark = ""
        if number == 0:
            mark = text(top)
        elif number == rows - 1:
            mark = "0"
        prefix: Line = ((f"{mark:>{scale - 1}} ", "dim"),) if scale else ()
        lines.append(fit((*prefix, *line), width))
    return lines
