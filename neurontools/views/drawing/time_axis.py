"""What stands along a time axis: clock times, events, and where nothing is known."""

from __future__ import annotations

import time

from neurontools.client.history.axis import Axis
from neurontools.client.history.events import Event, Severity
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, cell, fit
from neurontools.views.drawing.own_events import events_of
from neurontools.views.drawing.scene import Scene

_TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_LABEL_GAP = 4  # cells between two labels
_NO_DATA = "no data"
_GRAVITY = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_STYLES = ("label", "warn", "bad")


def scale_cells(width: int) -> int:
    """The cells to the left of the axis, the same for all that share it."""
    return 20 if width >= 60 else 10 if width >= 30 else 0


def time_axis(scene: Scene, width: int) -> Axis | None:
    """The axis of a page, behind the cells of the scale; None while no past is known."""
    series = scene.series
    if series is None or not len(series):
        return None
    cells = width - scale_cells(width) - 1
    return series.axis(cells, scene.window_seconds, scene.snapshot.taken_at_unix_seconds)


def loading_text(scene: Scene) -> str:
    """A sign that more of the past is coming; "" when all is known."""
    return f"loading the past{scene.glyphs.ellipsis}" if scene.clock.is_loading_past else ""


def clock_line(scene: Scene, axis: Axis, width: int) -> Line:
    """Clock times at round moments."""
    cells = [" "] * axis.cells
    step = next((step for step in _TICK_SECONDS if _label_cells(step) <= step / axis.cell_seconds), 86_400)
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    offset_seconds = axis.clock_offset_seconds
    first = int((axis.begins_seconds + offset_seconds) // step) + 1
    free = 0
    for number in range(first, first + axis.cells):
        at = axis.cell_at(number * step - offset_seconds)
        if at is None:
            break
        label = scene.glyphs.tick + time.strftime(form, time.localtime(number * step))
        if at >= free and at + len(label) <= axis.cells:
            cells[at : at + len(label)] = label
            free = at + len(label) + 1
    return fit(((" " * scale_cells(width), "dim"), ("".join(cells), "dim")), width)


def _label_cells(step: int) -> int:
    return (9 if step < 60 else 6) + _LABEL_GAP


def event_line(scene: Scene, axis: Axis, width: int) -> Line:
    """A mark where something happened, the gravest of a cell; and where nothing is known of the time."""
    marks = marked(events_of(scene, scene.pid if scene.details_pid is None else scene.details_pid), axis)
    runs: list[Run] = [(cell(" events", scale_cells(width)), "label")]
    gaps = _gap_words(axis)
    for position in range(axis.cells):
        gravity = marks.get(position)
        text, style = (
            (mark(scene.glyphs, gravity), _STYLES[gravity]) if gravity is not None else (gaps[position], "dim")
        )
        if runs[-1][1] == style and len(runs) > 1:
            runs[-1] = (runs[-1][0] + text, style)
        else:
            runs.append((text, style))
    return fit(runs, width)


def marked(events: tuple[Event, ...], axis: Axis) -> dict[int, int]:
    """How grave the gravest event of a cell is, 0 to 2, by cell."""
    found: dict[int, int] = {}
    for event in reversed(events):
        if event.at_seconds < axis.begins_seconds:
            break
        position = axis.cell_at(event.at_seconds)
        if position is not None:
            found[position] = max(found.get(position, 0), _GRAVITY[event.severity])
    return found


def mark(glyphs: Glyphs, gravity: int) -> str:
    """The mark of events so grave."""
    return (glyphs.info, glyphs.warn, glyphs.bad)[gravity]


def gravity_style(gravity: int) -> str:
    """The style of the mark of events so grave."""
    return _STYLES[gravity]


def _gap_words(axis: Axis) -> str:
    """Along the axis, "no data" in each gap that has room for it."""
    steps = axis.steps()
    words = [" "] * axis.cells
    begin: int | None = None
    for position in range(axis.cells + 1):
        is_gap = position < axis.cells and steps[position] is None
        if is_gap and begin is None:
            begin = position
        elif not is_gap and begin is not None:
            room = position - begin
            if begin > 0 and room >= len(_NO_DATA) + 2:
                at = begin + (room - len(_NO_DATA)) // 2
                words[at : at + len(_NO_DATA)] = _NO_DATA
            begin = None
    return "".join(words)
