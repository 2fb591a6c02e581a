"""Colours and glyphs that mean something can be read and told apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from neurontools.views.drawing.glyphs import ASCII, UNICODE, Glyphs, memory_style
from neurontools.views.drawing.heat_scale import heat_glyph, heat_legend, heat_sparkline, heat_step, load_style
from neurontools.views.drawing.lines import LOADS, SELECTED, THEMES
from tests.harness.colours import DARK_BACKGROUND, LIGHT_BACKGROUND, contrast, distance

TEXTS = ("text", "dim", "strong", "label", "heading", "good", "warn", "bad", "key", "tab_current", "held", *LOADS)


@pytest.mark.parametrize("theme", [name for name in THEMES if name != "mono"])
def test_text_can_be_read_and_the_steps_of_the_heat_scale_look_equally_far_apart(theme: str) -> None:
    background = DARK_BACKGROUND if THEMES[theme].is_dark else LIGHT_BACKGROUND
    for name in THEMES[theme].styles:
        style = THEMES[theme].style(name)
        assert style.color is not None
        assert name not in TEXTS or contrast(style.color, background) >= 4.5, name
        assert style.background is None or contrast(style.color, style.background) >= 4.5, name
    for name in TEXTS:
        selected = THEMES[theme].style(name + SELECTED)
        assert selected.color is not None
        assert selected.background is not None
        assert contrast(selected.color, selected.background) >= 4.5, name
    colours = [THEMES[theme].style(name).color or "" for name in LOADS]
    steps = [distance(one, other) for one, other in pairwise(colours)]
    assert min(steps) >= 0.045, "twice the least difference that one sees"
    assert max(steps) <= 1.25 * min(steps)
    assert THEMES[theme].styles.keys() == THEMES["dark"].styles.keys()


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_busy_cores_differ_in_colour_and_in_glyph(glyphs: Glyphs) -> None:
    ratios = (0.1, 0.3, 0.5, 0.7, 0.82, 0.87, 0.92, 0.97)
    assert len({load_style(ratio, 0.02) for ratio in ratios}) == 8
    assert len({glyphs.free, glyphs.held, *(heat_glyph(ratio, glyphs) for ratio in ratios)}) == 10
    assert load_style(0.01, 0.02) == "held"
    drawn = heat_sparkline([None, *ratios, float("nan")], 11, glyphs)
    assert "".join(text for text, _ in drawn) == f"  {glyphs.heat} "
    assert [style for text, style in drawn if text in glyphs.heat] == list(LOADS)
    legend = "".join(text for text, _ in heat_legend(glyphs))
    assert legend == "0{}20{}40{}60{}80{}85{}90{}95{}100 %".format(*glyphs.heat)


def test_steps_begin_at_their_bounds() -> None:
    """Also where the computed ratio is a rounding error below the bound."""
    for step, bound in enumerate((0.2, 0.4, 0.6, 0.8, 0.85, 0.9, 0.95)):
        assert [heat_step(ratio) for ratio in (bound - 0.001, bound - 1e-12, bound)] == [step, step + 1, step + 1]
    assert [load_style(ratio, 0.02) for ratio in (0.0199, 0.02, 1.5, -1.0)] == ["held", "load1", "load8", "held"]
    ratios = (None, 0.0, 0.799, 0.8, 0.949, 0.95, 2.0)
    assert [memory_style(ratio) for ratio in ratios] == ["dim", "memory", "memory", "warn", "warn", "bad", "bad"]
