"""Operators as a flame graph: modules, lines of the script in them, operators of these; as wide as they took long."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.profile.analysis.operators import FlameFrame
from neurontools.util.formats import Markup, element
from neurontools.util.units import bytes_text, duration_text, percent_text
from neurontools.views.profile.parts import flop_text
from neurontools.views.profile.web.charts import WIDTH

_ROW_CELLS = 18.0
_LEAST_WIDTH = 0.5  # narrower ones are not drawn
_LETTER_WIDTH = 6.2
_MOST_LEVELS = 40
_MOST_LETTERS = 200


def flame_graph(root: FlameFrame) -> Markup:
    """The picture; what a frame is and took is shown by the pointer."""
    drawn = list(_frames(root, root.seconds or 1.0, 0.0, 0))
    levels = 1 + max((level for level, _ in drawn), default=0)
    frames = (frame for _, frame in drawn)
    return element(
        "figure", element("svg", *frames, viewBox=f"0 0 {WIDTH:g} {levels * _ROW_CELLS:g}", role="img", class_="flame")
    )


def _frames(frame: FlameFrame, whole: float, left: float, level: int) -> Iterator[tuple[int, Markup]]:
    width = WIDTH * frame.seconds / whole
    if width < _LEAST_WIDTH or level >= _MOST_LEVELS:
        return
    top = level * _ROW_CELLS
    told = (
        f"{frame.name}: {duration_text(frame.seconds)}, {percent_text(frame.seconds / whole, 1)}; "
        f"{flop_text(frame.flops)}, {bytes_text(frame.bytes)}"
    )
    kind = "backward" if frame.name.endswith(" (backward)") else f"f{sum(frame.name.encode('utf-8', 'replace')) % 6}"
    parts = [
        element("title", told),
        element("rect", x=left, y=top, width=width, height=_ROW_CELLS, class_=f"frame {kind}"),
    ]
    letters = min(_MOST_LETTERS, int((width - 6) / _LETTER_WIDTH))
    if letters >= 3:
        name = frame.name if len(frame.name) <= letters else f"{frame.name[: letters - 1]}…"
        parts.append(element("text", name, x=left + 3, y=top + 13, class_="in"))
    yield level, element("g", *parts)
    for below in frame.ordered():
        yield from _frames(below, whole, left, level + 1)
        left += WIDTH * below.seconds / whole
