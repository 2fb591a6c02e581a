"""Colours that mean something can be read and told apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from neurontools.views.drawing.style import LOADS, SELECTED, THEMES

COLOURED = [name for name in THEMES if name != "mono"]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", COLOURED)
@pytest.mark.parametrize("style", [*LOADS, "held", "bad", "warn", "dim"])
def test_what_a_colour_says_can_be_read_on_the_ground_and_on_the_selected_row(theme: str, style: str) -> None:
    plain, selected = THEMES[theme].style(style), THEMES[theme].style(style + SELECTED)
    assert plain.color is not None
    assert selected.background is not None
    assert contrast(plain.color, "#1a1a1a" if THEMES[theme].is_dark else "#ffffff") >= 3
    if style != "dim":
        assert contrast(plain.color, selected.background) >= 3


@pytest.mark.parametrize("theme", COLOURED)
def test_the_steps_of_load_differ_from_each_other_and_from_idle(theme: str) -> None:
    colours = [THEMES[theme].style(name).color for name in ("held", *LOADS)]
    assert all(one != other for one, other in pairwise(colours))
    assert len(set(colours)) == len(colours)


def test_every_style_of_a_theme_is_in_all_of_those_with_colours() -> None:
    names = [set(THEMES[name].styles) for name in COLOURED]
    assert all(each == names[0] for each in names)
