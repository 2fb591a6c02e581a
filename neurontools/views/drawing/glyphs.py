"""The characters that pages are drawn with: braille and blocks, blocks, or ASCII alone."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, eq=False)
class Glyphs:
    """One set of characters; `levels` and `fractions` go from nothing to full.

    Each is only itself: bars are remembered by it, and to hash all its characters took longer than to draw them.
    """

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
    tick: str  # where a label of a time axis stands
    info: str  # an event that is neither warning nor critical, on a time axis
    heat: str  # a core in a heat map, from hardly to always at work
    held: str  # one that is held and idle
    free: str
    is_dotted: bool = False  # plots are drawn with braille dots: two across and four up in a cell


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
    tick="╵",
    info="•",
    heat="▂▃▄▅▆▇█",
    held="▁",
    free="·",
    is_dotted=True,
)

BLOCKS = replace(UNICODE, is_dotted=False)
"""For terminals whose fonts lack braille, as the console of Linux."""

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
    tick="|",
    info="o",
    heat=":-=+*%#",
    held="_",
    free=".",
)

_WITHOUT_BRAILLE = ("linux", "vt", "cons")


def glyphs_for(*, is_ascii: bool, terminal: str) -> Glyphs:
    """What to draw with; `terminal` is its kind, as TERM has it."""
    if is_ascii:
        return ASCII
    return BLOCKS if terminal.startswith(_WITHOUT_BRAILLE) else UNICODE
