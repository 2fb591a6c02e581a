"""The characters that pages are drawn with: Unicode blocks, or ASCII alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters; `levels` and `fractions` go from nothing to full."""

    full: str
    track: str  # the part of a bar that is not filled
    fractions: str  # a bar's last cell, from 1/8 to 7/8; empty: whole cells only
    levels: str  # a sparkline's cells, from the lowest to the highest
    thin_full: str  # of thin bars, beside those of cores
    thin_half: str  # empty: whole cells only
    thin_track: str
    rule: str
    opened: str
    closed: str
    leaf: str
    left: str  # the marks around the current tab
    right: str
    position: str  # where the scrubber stands
    mark: str  # a tagged row
    ellipsis: str
    good: str  # verdicts, so that they are told without colour too
    warn: str
    bad: str
    ascending: str
    descending: str
    recording: str
    neighbour: str
    horizontal: str
    vertical: str


UNICODE = Glyphs(
    full="█",
    track="·",
    fractions="▏▎▍▌▋▊▉",
    levels=" ▁▂▃▄▅▆▇█",
    thin_full="━",
    thin_half="╸",
    thin_track="─",
    rule="─",
    opened="▾ ",
    closed="▸ ",
    leaf="  ",
    left=">",
    right="<",
    position="◆",
    mark="●",
    ellipsis="…",
    good="✓",
    warn="▲",
    bad="✗",
    ascending="▲",
    descending="▼",
    recording="●",
    neighbour="◂",
    horizontal="──",
    vertical="│",
)

ASCII = Glyphs(
    full="#",
    track=".",
    fractions="",
    levels=" .:-=+*%#",
    thin_full="=",
    thin_half="",
    thin_track="-",
    rule="-",
    opened="- ",
    closed="+ ",
    leaf="  ",
    left=">",
    right="<",
    position="O",
    mark="*",
    ellipsis="~",
    good="ok",
    warn="!",
    bad="X",
    ascending="^",
    descending="v",
    recording="REC",
    neighbour="<",
    horizontal="--",
    vertical="|",
)
