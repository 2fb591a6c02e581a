"""Colours that mean something can be read and told apart."""

from __future__ import annotations

import pytest

from neurontools.views.drawing.lines import LOADS, SELECTED, THEMES


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [name for name in THEMES if name != "mono"])
def test_what_a_colour_says_can_be_read_and_told_apart(theme: str) -> None:
    for style in (*LOADS, "held", "bad", "warn", "dim"):
        plain, selected = THEMES[theme].style(style), THEMES[theme].style(style + SELECTED)
        assert plain.color is not None
        assert selected.background is not None
        assert contrast(plain.color, "#1a1a1a" if THEMES[theme].is_dark else "#ffffff") >= 3, style
        assert style == "dim" or contrast(plain.color, selected.background) >= 3, style
    steps = [THEMES[theme].style(name).color for name in ("held", *LOADS)]
    assert len(set(steps)) == len(steps)
    assert set(THEMES[theme].styles) == set(THEMES["dark"].styles)
