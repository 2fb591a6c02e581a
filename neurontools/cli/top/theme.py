"""Which colours neuron-top begins with."""

from __future__ import annotations

from collections.abc import Mapping

from neurontools.cli.top.options import COLORS, one_of


def chosen_theme(wanted: str, given: dict[str, str], environment: Mapping[str, str]) -> str:
    """The theme to begin with: a flag goes before NO_COLOR, that before the settings; auto is dark at first."""
    color = one_of(given, "color", COLORS)
    if color == "never" or (color is None and "theme" not in given and environment.get("NO_COLOR")):
        return "mono"
    if wanted != "auto":
        return wanted
    # "15;0": colours of text and ground, as rxvt and others tell them.
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if ground in ("7", "15") else "dark"
