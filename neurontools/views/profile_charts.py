"""The charts of the HTML report on a profile, as SVG: stacked columns and areas, bars, a flame graph and lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from neurontools.profile.analysis.operators import FlameFrame
from neurontools.profile.analysis.steps import NS_PER_SECOND, PART_NAMES, Lane, StepTimeline
from neurontools.util.formats import Markup, element
from neurontools.util.units import duration_text, iec_bytes_text, percent_text
from neurontools.views.profile_report import flop_text

WIDTH = 1120.0
_LEFT, _TOP, _BOTTOM = 70.0, 6.0, 20.0
_TICKS = 4
_CUT_RATIO = 1.0001  # a column is cut if it is higher than the scale times this factor, which allows for rounding
_FRAME_HEIGHT = 18.0
_LEAST_FRAME_WIDTH = 0.5  # least width of a drawn frame of the flame graph; narrower frames are left out
_LETTER_WIDTH = 6.2
_MOST_FRAME_LEVELS = 40
_MOST_LETTERS = 200
_LANE_LEFT, _LANE_HEIGHT, _LANE_GAP, _LANES_BOTTOM = 150.0, 16.0, 4.0, 18.0
_LEAST_PIECE_WIDTH = 0.3  # least drawn width of a time span in a lane
_MOST_PIECES = 2000  # most time spans drawn per lane; later ones are left out


def stacked_column_chart(
    columns: Sequence[Sequence[float]],
    titles: Sequence[str],
    *,
    height: float,
    value_text: Callable[[float], str],
    left_text: str,
    right_text: str,
) -> Markup:
    """Draws a chart of stacked columns; `titles` are their tooltips.

    Cuts and marks a few columns that are far higher than the others, so that the others stay visible.
    """
    highest = _chart_top([sum(column) for column in columns])
    plot = height - _TOP - _BOTTOM
    parts = _grid_lines(highest, height, value_text)
    step = (WIDTH - _LEFT) / max(1, len(columns))
    width = max(step * 0.98, 0.3)
    for number, (column, title) in enumerate(zip(columns, titles, strict=True)):
        bottom, left = height - _BOTTOM, _LEFT + number * step
        bars = []
        for kind, value in enumerate(column):
            size = min(plot * max(0.0, value) / highest, bottom - _TOP)
            if size > 0:
                bottom -= size
                bars.append(element("rect", x=left, y=bottom, width=width, height=size, class_=f"s{kind % 6}"))
        if sum(column) > highest * _CUT_RATIO:
            middle = left + step / 2
            bars.append(element("path", d=f"M{middle - 4:.1f} {_TOP + 6:g}h8l-4 -6z", class_="cut"))
        parts.append(element("g", element("title", title), *bars))
    return _svg(height, [*parts, *_end_labels(left_text, right_text, _LEFT, height)])


def stacked_area_chart(
    times: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    height: float,
    value_text: Callable[[float], str],
    left_text: str,
    right_text: str,
) -> Markup:
    """Draws a chart of stacked areas over time. Each value is constant until the next time."""
    highest = max((sum(moment) for moment in values), default=0.0) or 1.0
    first, last = times[0], times[-1]
    span = (last - first) or 1.0
    plot = height - _TOP - _BOTTOM
    parts = _grid_lines(highest, height, value_text)
    below = [0.0] * len(values)
    across = [_LEFT + (WIDTH - _LEFT) * (time - first) / span for time in times]
    for kind in range(len(values[0])):
        above = [low + max(0.0, moment[kind]) for low, moment in zip(below, values, strict=True)]
        if any(moment[kind] > 0 for moment in values):
            path = _outline(across, above, below, lambda value: height - _BOTTOM - plot * value / highest)
            parts.append(element("path", d=path, class_=f"s{kind % 6}"))
        below = above
    return _svg(height, [*parts, *_end_labels(left_text, right_text, _LEFT, height)])


def _end_labels(left_text: str, right_text: str, left: float, height: float) -> tuple[Markup, Markup]:
    return (
        element("text", left_text, x=left, y=height - 4, class_="dim"),
        element("text", right_text, x=WIDTH, y=height - 4, text_anchor="end", class_="dim"),
    )


def part_bar(parts: Sequence[float], titles: Sequence[str]) -> Markup:
    """Draws a bar that is divided into parts; `titles` are the tooltips of the parts."""
    whole = sum(parts) or 1.0
    left, bars = 0.0, []
    for kind, (part, title) in enumerate(zip(parts, titles, strict=True)):
        width = WIDTH * part / whole
        if width > 0:
            bar = element("rect", x=left, y=0, width=width, height=22, class_=f"s{kind % 6}")
            bars.append(element("g", element("title", title), bar))
            left += width
    return _svg(22.0, bars)


def share_bars(rows: Sequence[tuple[str, float, str]], kind: int) -> Markup:
    """Draws a horizontal bar per row; a row is a label, a value and a text. The longest bar fills the width."""
    highest = max((value for _, value, _ in rows), default=0.0) or 1.0
    room, height = WIDTH - 400.0, 20.0
    drawn = []
    for number, (label, value, shown_text) in enumerate(rows):
        top = number * height
        width = room * value / highest
        drawn.append(element("text", label, x=150, y=top + 14, text_anchor="end"))
        drawn.append(element("rect", x=160, y=top + 3, width=max(width, 0.5), height=height - 6, class_=f"s{kind}"))
        drawn.append(element("text", shown_text, x=166 + width, y=top + 14, class_="dim"))
    return _svg(height * max(1, len(rows)), drawn)


def colour_key(names: Sequence[str]) -> Markup:
    """Draws the legend of a chart: a coloured square per name."""
    entries = []
    for kind, name in enumerate(names):
        square = element("rect", width=12, height=12, class_=f"s{kind % 6}")
        entries.append(element("span", element("svg", square, viewBox="0 0 12 12"), f" {name}"))
    return element("div", *entries, class_="key")


def _outline(
    across: Sequence[float], above: Sequence[float], below: Sequence[float], place: Callable[[float], float]
) -> str:
    """Returns the SVG path around an area of a stacked chart. Its edges are horizontal from each time to the next."""
    last = len(across) - 1
    there = (f"H{across[position]:.1f}V{place(above[position]):.1f}" for position in range(1, last + 1))
    back = (f"V{place(below[position - 1]):.1f}H{across[position - 1]:.1f}" for position in range(last, 0, -1))
    begin, turn = (f"{across[0]:.1f} {place(above[0]):.1f}", f"{across[last]:.1f} {place(below[last]):.1f}")
    return f"M{begin}{''.join(there)}L{turn}{''.join(back)}Z"


def _chart_top(sums: Sequence[float]) -> float:
    """Returns the top of a chart's scale: the highest column, unless it is over three times the 90th percentile."""
    ordered = sorted(sums)
    if not ordered:
        return 1.0
    most = ordered[int(0.9 * (len(ordered) - 1))]
    return (1.25 * most if 0 < 3 * most < ordered[-1] else ordered[-1]) or 1.0


def _grid_lines(highest: float, height: float, value_text: Callable[[float], str]) -> list[Markup]:
    drawn = []
    plot = height - _TOP - _BOTTOM
    for tick in range(_TICKS + 1):
        value = highest * tick / _TICKS
        y = height - _BOTTOM - plot * tick / _TICKS
        drawn.append(element("line", x1=_LEFT, x2=WIDTH, y1=y, y2=y, class_="grid"))
        drawn.append(element("text", value_text(value), x=_LEFT - 6, y=y + 4, text_anchor="end", class_="dim"))
    return drawn


def _svg(height: float, content: Iterable[str], **attributes: str) -> Markup:
    view_box = f"0 0 {WIDTH:g} {height:g}"
    return element("figure", element("svg", *content, viewBox=view_box, role="img", **attributes))


def flame_graph(root: FlameFrame) -> Markup:
    """Draws the flame graph of modules, source lines and operators. Tooltips show name, time, FLOP and bytes."""
    drawn = list(_frame_shapes(root, root.seconds or 1.0, 0.0, 0))
    levels = 1 + max((level for level, _ in drawn), default=0)
    return _svg(levels * _FRAME_HEIGHT, (frame for _, frame in drawn), class_="flame")


def _frame_shapes(frame: FlameFrame, whole: float, left: float, level: int) -> Iterator[tuple[int, Markup]]:
    width = WIDTH * frame.seconds / whole
    if width < _LEAST_FRAME_WIDTH or level >= _MOST_FRAME_LEVELS:
        return
    top = level * _FRAME_HEIGHT
    shown_text = (
        f"{frame.name}: {duration_text(frame.seconds)}, {percent_text(frame.seconds / whole, 1)}; "
        f"{flop_text(frame.flops)}, {iec_bytes_text(frame.bytes)}"
    )
    kind = "backward" if frame.name.endswith(" (backward)") else f"f{sum(frame.name.encode('utf-8', 'replace')) % 6}"
    parts = [
        element("title", shown_text),
        element("rect", x=left, y=top, width=width, height=_FRAME_HEIGHT, class_=f"frame {kind}"),
    ]
    letters = min(_MOST_LETTERS, int((width - 6) / _LETTER_WIDTH))
    if letters >= 3:
        name = frame.name if len(frame.name) <= letters else f"{frame.name[: letters - 1]}…"
        parts.append(element("text", name, x=left + 3, y=top + 13, class_="in"))
    yield level, element("g", *parts)
    for below in frame.ordered():
        yield from _frame_shapes(below, whole, left, level + 1)
        left += WIDTH * below.seconds / whole


def lane_chart(timeline: StepTimeline) -> Markup:
    """Draws the timeline of the latest steps: a lane per rank and core. Tooltips show name and duration."""
    height = len(timeline.lanes) * (_LANE_HEIGHT + _LANE_GAP) + _LANES_BOTTOM
    span = max(1, timeline.end_ns - timeline.start_ns)
    drawn = []
    for number, lane in enumerate(timeline.lanes):
        top = number * (_LANE_HEIGHT + _LANE_GAP)
        name = f"rank {lane.rank}, {'host' if lane.core is None else f'NeuronCore {lane.core}'}"
        drawn.append(element("text", name, x=_LANE_LEFT - 8, y=top + 12, text_anchor="end"))
        drawn.append(element("rect", x=_LANE_LEFT, y=top, width=WIDTH - _LANE_LEFT, height=_LANE_HEIGHT, class_="lane"))
        drawn += _piece_shapes(lane, top, timeline.start_ns, (WIDTH - _LANE_LEFT) / span)
    drawn += _end_labels("0 s", duration_text(span / NS_PER_SECOND), _LANE_LEFT, height)
    return _svg(height, drawn)


def _piece_shapes(lane: Lane, top: float, start_ns: int, scale: float) -> Iterator[Markup]:
    for piece in lane.pieces[:_MOST_PIECES]:
        left = _LANE_LEFT + max(0, piece.start_ns - start_ns) * scale
        right = min(WIDTH, _LANE_LEFT + (piece.end_ns - start_ns) * scale)
        if right <= _LANE_LEFT or left >= WIDTH:
            continue
        duration = duration_text((piece.end_ns - piece.start_ns) / NS_PER_SECOND)
        width, part = max(right - left, _LEAST_PIECE_WIDTH), f"s{PART_NAMES.index(piece.part)}"
        shape = element("rect", x=left, y=top, width=width, height=_LANE_HEIGHT, class_=part)
        yield element("g", element("title", f"{piece.part}: {piece.name}, {duration}"), shape)
