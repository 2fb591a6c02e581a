"""The styles of the themes as rich has them."""

from __future__ import annotations

from functools import cache

from rich.style import Style

from neurontools.views.drawing.style import THEMES


@cache
def rich_style(theme: str, name: str) -> Style:
    """The style of this name in a theme."""
    style = THEMES[theme].style(name)
    return Style(
        color=style.color,
        bgcolor=style.background,
        bold=style.bold,
        dim=style.dim,
        reverse=style.reverse,
        underline=style.underline,
    )
