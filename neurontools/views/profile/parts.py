"""What the sections of the report share: headings, labelled lines, the words for places and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.profile import SourceLine
from neurontools.profile.analysis.operators import UNKNOWN_LINE, source_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import flops_text
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, clip, fit_marked, line_width, pad

_LABEL_CELLS = 13
_LONGEST_NAME = 200


def heading(text: str, note: str, width: int, glyphs: Glyphs) -> Line:
    """The heading of a section: its name and a remark in a rule over the whole width."""
    runs: list[Run] = [(f"{glyphs.rule} ", "rule"), (text, "heading"), (" ", "rule")]
    room = width - line_width(runs) - 3
    if note and room > 0:
        told = clip(note, room, mark=True)
        gap = glyphs.rule * max(1, room - len(told))
        runs += [(gap, "rule"), (f" {told} ", "dim")]
    runs.append((glyphs.rule * max(0, width - line_width(runs)), "rule"))
    return fit_marked(runs, width)


def labelled(label: str, runs: Sequence[Run], width: int) -> Line:
    """A line with a label before it."""
    return fit_marked(((f" {pad(label, _LABEL_CELLS)} ", "label"), *runs), width)


def plain_line(text: str, width: int, style: str = "text") -> Line:
    """A line of text."""
    return fit_marked(((f" {text}", style),), width)


def shown_place(place: SourceLine | None) -> str:
    """A line of the script, fit to show: the file without its directory."""
    return UNKNOWN_LINE if place is None else name(source_text(place))


def name(text: str) -> str:
    """A name from a profile, fit to show."""
    return escape_controls(text[:_LONGEST_NAME])


def flop_text(flops: float) -> str:
    """A number of floating-point operations: "1.5 GFLOP"."""
    return flops_text(flops).replace("FLOPS", "FLOP")
