"""The latest steps of all ranks as lanes beside each other."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.profile.analysis.steps import NS_PER_SECOND, PART_NAMES, Lane, StepTimeline
from neurontools.util.formats import Markup, element
from neurontools.util.units import duration_text
from neurontools.views.profile.web.charts import WIDTH

_LEFT, _LANE, _GAP, _BOTTOM = 150.0, 16.0, 4.0, 18.0
_LEAST_WIDTH = 0.3  # narrower pieces are drawn so wide
_MOST_PIECES = 2000  # in a lane; later ones are left out


def lanes(timeline: StepTimeline) -> Markup:
    """The picture; what a piece is and how long it took is shown by the pointer."""
    height = len(timeline.lanes) * (_LANE + _GAP) + _BOTTOM
    span = max(1, timeline.end_ns - timeline.start_ns)
    drawn = []
    for number, lane in enumerate(timeline.lanes):
        top = number * (_LANE + _GAP)
        drawn.append(element("text", _lane_name(lane), x=_LEFT - 8, y=top + 12, text_anchor="end"))
        drawn.append(element("rect", x=_LEFT, y=top, width=WIDTH - _LEFT, height=_LANE, class_="lane"))
        drawn += _pieces(lane, top, timeline.start_ns, (WIDTH - _LEFT) / span)
    told = duration_text(span / NS_PER_SECOND)
    drawn.append(element("text", "0 s", x=_LEFT, y=height - 4, class_="dim"))
    drawn.append(element("text", told, x=WIDTH, y=height - 4, text_anchor="end", class_="dim"))
    return element("figure", element("svg", *drawn, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img"))


def _pieces(lane: Lane, top: float, start_ns: int, scale: float) -> Iterator[Markup]:
    for piece in lane.pieces[:_MOST_PIECES]:
        left = _LEFT + max(0, piece.start_ns - start_ns) * scale
        right = min(WIDTH, _LEFT + (piece.end_ns - start_ns) * scale)
        if right <= _LEFT or left >= WIDTH:
            continue
        took = duration_text((piece.end_ns - piece.start_ns) / NS_PER_SECOND)
        shape = element(
            "rect",
            x=left,
            y=top,
            width=max(right - left, _LEAST_WIDTH),
            height=_LANE,
            class_=f"s{PART_NAMES.index(piece.part)}",
        )
        yield element("g", element("title", f"{piece.part}: {piece.name}, {took}"), shape)


def _lane_name(lane: Lane) -> str:
    return f"rank {lane.rank}, {'host' if lane.core is None else f'NeuronCore {lane.core}'}"
