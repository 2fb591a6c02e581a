"""The names of the styles that pages use, and how each theme shows them.

A style name may end in `+found`: the same, bright, for what a search finds; and in `+selected`: the same on the ground
of the selected row. Meaning is never told by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

FOUND, SELECTED = "+found", "+selected"
_QUIET = ("text", "dim", "idle")
LOADS = ("load1", "load2", "load3", "load4")
"""The styles of cores that work, from little to much; those that are held and idle have `held`, free ones `dim`."""


def load_style(ratio: float, idle_below_ratio: float) -> str:
    """The style of what is held and used so much of the time, 0..1; below `idle_below_ratio` it counts as idle."""
    return LOADS[min(len(LOADS) - 1, int(min(ratio, 1.0) * len(LOADS)))] if ratio >= idle_below_ratio else "held"


@dataclass(frozen=True, slots=True)
class Style:
    """Colours as "#rrggbb", None for the terminal's own; and attributes."""

    color: str | None = None
    background: str | None = None
    bold: bool = False
    dim: bool = False
    reverse: bool = False
    underline: bool = False


@dataclass(frozen=True, slots=True)
class Theme:
    """How a theme shows each style name; those it does not list look like `text`."""

    name: str
    is_dark: bool
    styles: dict[str, Style]
    selected_background: str | None

    def style(self, name: str) -> Style:
        """The style of this name, with `+found` and `+selected` worked in."""
        return _resolved(self.name, name)


def _theme(
    name: str,
    *,
    is_dark: bool,
    text: str,
    dim: str,
    accent: str,
    good: str,
    warn: str,
    bad: str,
    busy: str,
    load: tuple[str, str, str, str],
    system: str,
    track: str,
    bar: tuple[str, str],
    selected: str,
) -> Theme:
    """A theme from its colours."""
    return Theme(
        name,
        is_dark,
        {
            "text": Style(text),
            "dim": Style(dim),
            "strong": Style(text, bold=True),
            "label": Style(accent),
            "heading": Style(accent, bold=True),
            "rule": Style(track),
            "title": Style(bar[0], bar[1], bold=True),
            "title_dim": Style(bar[0], bar[1]),
            "title_warn": (odd := Style("#000000" if is_dark else "#ffffff", warn, bold=True)),
            "title_warning": odd,
            "title_bad": (wrong := Style("#ffffff", bad if not is_dark else "#b3261e", bold=True)),
            "title_critical": wrong,
            "good": Style(good),
            "warn": Style(warn),
            "bad": Style(bad, bold=True),
            "busy": Style(busy),
            "held": Style(warn),
            **{name: Style(color) for name, color in zip(LOADS, load, strict=True)},
            "idle": Style(dim),
            "system": Style(system),
            "track": Style(track),
            "memory": Style(accent),
            "spark": Style(busy),
            "tab": Style(dim),
            "tab_current": Style(good, bold=True),
            "key": Style(accent, bold=True),
            "column": Style(bar[0], bar[1]),
            "column_sorted": Style(bar[0], bar[1], bold=True, underline=True),
            "mine": Style("#000000" if is_dark else "#ffffff", good, bold=True),
            "lit": Style(text, selected),
        },
        selected,
    )


DARK = _theme(
    "dark",
    is_dark=True,
    text="#d8dee4",
    dim="#7d8590",
    accent="#79b8ff",
    good="#56d364",
    warn="#e3b341",
    bad="#ff7b72",
    busy="#3fb950",
    load=("#6fa588", "#57b06f", "#3fb950", "#6ee07f"),
    system="#d29922",
    track="#3d444d",
    bar=("#e6edf3", "#1f4b7a"),
    selected="#2d3f55",
)
LIGHT = _theme(
    "light",
    is_dark=False,
    text="#1f2328",
    dim="#656d76",
    accent="#0550ae",
    good="#116329",
    warn="#7d4e00",
    bad="#b31d28",
    busy="#1a7f37",
    load=("#4d7a2a", "#2f7d31", "#1a7f37", "#0b5c26"),
    system="#9a6700",
    track="#c4cad1",
    bar=("#ffffff", "#0550ae"),
    selected="#cfe4ff",
)
# Okabe and Ito's colours, told apart with any common colour blindness: blue, orange and vermilion instead of
# green, yellow and red.
COLOUR_BLIND = _theme(
    "colour-blind",
    is_dark=True,
    text="#e6e6e6",
    dim="#8c8c8c",
    accent="#56b4e9",
    good="#56b4e9",
    warn="#e69f00",
    bad="#ff7a33",
    busy="#0f9bd8",
    load=("#8aa9bd", "#5fa8d3", "#2ba5de", "#6cc4f0"),
    system="#f0e442",
    track="#4d4d4d",
    bar=("#ffffff", "#004d80"),
    selected="#3a4653",
)
COLOUR_BLIND_LIGHT = _theme(
    "colour-blind-light",
    is_dark=False,
    text="#1a1a1a",
    dim="#666666",
    accent="#005b94",
    good="#005b94",
    warn="#8a5a00",
    bad="#a83200",
    busy="#0072b2",
    load=("#3d78a6", "#1f76ad", "#0072b2", "#00507d"),
    system="#8f7a00",
    track="#c2c2c2",
    bar=("#ffffff", "#005b94"),
    selected="#d4e6f5",
)
MONO = Theme(
    "mono",
    is_dark=True,
    styles={
        "text": Style(),
        "dim": Style(dim=True),
        "strong": Style(bold=True),
        "heading": Style(bold=True),
        "title": Style(reverse=True, bold=True),
        "title_dim": Style(reverse=True),
        "title_warn": Style(reverse=True, bold=True),
        "title_bad": Style(reverse=True, bold=True, underline=True),
        "title_warning": Style(reverse=True, bold=True),
        "title_critical": Style(reverse=True, bold=True, underline=True),
        "bad": Style(bold=True, underline=True),
        "warn": Style(bold=True),
        "tab_current": Style(bold=True),
        "key": Style(bold=True),
        "column": Style(reverse=True),
        "column_sorted": Style(reverse=True, bold=True, underline=True),
        "track": Style(dim=True),
        "rule": Style(dim=True),
        "idle": Style(dim=True),
        "mine": Style(reverse=True),
        "lit": Style(bold=True),
    },
    selected_background=None,
)

THEMES = {theme.name: theme for theme in (DARK, LIGHT, COLOUR_BLIND, COLOUR_BLIND_LIGHT, MONO)}


@cache
def _resolved(theme_name: str, name: str) -> Style:
    theme = THEMES[theme_name]
    base, *more = name.split("+")
    style = theme.styles.get(base, theme.styles["text"])
    if FOUND[1:] in more:
        color = theme.style("strong").color if style.dim or base in _QUIET else style.color
        style = replace(style, color=color, bold=True, dim=False)
    if SELECTED[1:] not in more:
        return style
    if theme.selected_background is None:
        return Style(bold=style.bold, reverse=not style.reverse, underline=style.underline)
    return Style(style.color, theme.selected_background, bold=True, underline=style.underline)
