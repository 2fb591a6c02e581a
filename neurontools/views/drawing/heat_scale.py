"""The heat scale: eight steps of utilization, each with its colour and glyph, for bars, sparklines and heat maps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.lines import LOADS, Run, append_run

BOUNDS = (0.20, 0.40, 0.60, 0.80, 0.85, 0.90, 0.95)
"""Lower bounds of all steps but the first. The steps are finer above 80 %, because most busy cores are there."""


def heat_step(ratio: float) -> int:
    """Returns the step (0 to 7) of a utilization (0..1); values outside get the nearest step."""
    return bisect_right(BOUNDS, ratio + 1e-9)


def load_style(ratio: float, idle_below_ratio: float) -> str:
    """Returns the style of a held core by its utilization (0..1); "held" below `idle_below_ratio`."""
    return LOADS[heat_step(ratio)] if ratio >= idle_below_ratio else "held"


def heat_glyph(ratio: float, glyphs: Glyphs) -> str:
    """Returns the character for a utilization (0..1)."""
    return glyphs.heat[heat_step(ratio)]


def heat_sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs) -> list[Run]:
    """Draws the last `width` utilizations as a sparkline, newest at the right. An unknown value leaves a gap."""
    shown = tuple(values[-width:]) if width > 0 else ()
    # Only the last value changes at every tick.
    runs = [*_sparkline_runs(shown[:-1], width - len(shown), glyphs)]
    for value in shown[-1:]:
        append_run(runs, *_sparkline_cell(_percent(value), glyphs))
    return runs


def _percent(value: float | None) -> int | None:
    if value is None or value != value:  # NaN differs from itself
        return None
    return int(100 * value + 0.5) if 0.0 <= value <= 1.0 else 100 * (value > 0)


@lru_cache(1024)
def _sparkline_runs(values: tuple[float | None, ...], blank_cells: int, glyphs: Glyphs) -> tuple[Run, ...]:
    runs: list[Run] = [(" " * blank_cells, "text")] if blank_cells > 0 else []
    for value in values:
        append_run(runs, *_sparkline_cell(_percent(value), glyphs))
    return tuple(runs)


@lru_cache(512)
def _sparkline_cell(percent: int | None, glyphs: Glyphs) -> Run:
    if percent is None:
        return " ", "text"
    return heat_glyph(percent / 100, glyphs), LOADS[heat_step(percent / 100)]


def heat_legend(glyphs: Glyphs) -> list[Run]:
    """Draws the legend of the scale: each glyph between the bounds of its step, in percent."""
    runs: list[Run] = [("0", "dim")]
    for step, bound in enumerate((*BOUNDS, 1.0)):
        runs += [(glyphs.heat[step], LOADS[step]), (f"{bound * 100:.0f}", "dim")]
    return [*runs, (" %", "dim")]
