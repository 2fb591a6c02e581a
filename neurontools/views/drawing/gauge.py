"""Bars, sparklines and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Run

_NEARLY_FULL_RATIO, _FULL_RATIO = 0.8, 0.95


def memory_style(ratio: float | None) -> str:
    """The style of memory that is in use by so much of what there is."""
    if ratio is None:
        return "dim"
    return "bad" if ratio >= _FULL_RATIO else "warn" if ratio >= _NEARLY_FULL_RATIO else "memory"


@lru_cache(4096)
def _parts(filled_eighths: int, width: int, glyphs: Glyphs) -> tuple[str, str]:
    whole, eighths = divmod(filled_eighths, 8)
    bar = glyphs.full * whole
    if glyphs.fractions and eighths and whole < width:
        bar += glyphs.fractions[eighths - 1]
    elif eighths >= 4 and whole < width:
        bar += glyphs.full
    return bar, glyphs.track * (width - len(bar))


def bar(ratio: float | None, width: int, glyphs: Glyphs, style: str = "busy") -> tuple[Run, ...]:
    """A bar of `width` cells, filled by a ratio of 0..1; empty when it is not known."""
    if width <= 0:
        return ()
    known = 0.0 if ratio is None or not math.isfinite(ratio) else min(1.0, max(0.0, ratio))
    filled, track = _parts(round(known * width * 8), width, glyphs)
    return ((filled, style), (track, "track")) if filled else ((track, "track"),)


def thin_bar(ratio: float | None, width: int, glyphs: Glyphs, style: str = "memory") -> tuple[Run, ...]:
    """A bar that is told from `bar` by its shape; what is in use at all is never drawn as nothing."""
    if width <= 0:
        return ()
    known = 0.0 if ratio is None or not math.isfinite(ratio) else min(1.0, max(0.0, ratio))
    halves = max(round(known * width * 2), 1 if known else 0)
    whole, half = divmod(halves, 2)
    filled = glyphs.thin_full * whole + (glyphs.thin_half or glyphs.thin_full) * half
    track = glyphs.thin_track * (width - len(filled))
    return tuple(run for run in ((filled, style), (track, "track")) if run[0])


def stacked_bar(ratios: Sequence[tuple[float | None, str]], width: int, glyphs: Glyphs) -> tuple[Run, ...]:
    """A bar of several parts, each a ratio of the whole and a style; in whole cells."""
    runs: list[Run] = []
    used, reached = 0, 0.0
    for ratio, style in ratios:
        reached = min(1.0, reached + max(0.0, ratio or 0.0))
        cells = round(reached * width) - used
        if cells > 0:
            runs.append((glyphs.full * cells, style))
            used += cells
    if used < width:
        runs.append((glyphs.track * (width - used), "track"))
    return tuple(runs)


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs, highest: float = 1.0) -> str:
    """The last `width` values as one line of levels, the newest at the right; a gap where a value is not known."""
    top = len(glyphs.levels) - 1
    scale = top / highest if highest > 0 else 0.0
    shown = values[-width:] if width > 0 else ()
    cells = []
    for value in shown:
        if value is None or value != value:  # NaN is not itself
            cells.append(" ")
        else:
            level = math.ceil(value * scale - 1e-9)
            # Something is never drawn as nothing.
            cells.append(glyphs.levels[max(1, min(top, level))])
    return " " * (width - len(cells)) + "".join(cells)
