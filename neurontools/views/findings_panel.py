"""The findings panel of the overview: the severest findings with the next step for each."""

from __future__ import annotations

from neurontools.model import Severity
from neurontools.model.health import group_alike, sentence
from neurontools.util.units import ranges_text
from neurontools.views.drawing.lines import Line, Run, clip, fit, line_width, printable, width_of
from neurontools.views.drawing.render_context import SEVERITY_STYLES, RenderContext, heading, severity_mark

_LEAST_LINES = 2
_REASON_CELLS, _ACTION_CELLS = 3, 9  # cells before the second line of a reason, and before an action


def finding_lines(context: RenderContext, width: int, height: int) -> list[Line]:
    """Draws the findings in at most `height` lines, severe ones first, with their actions if all fit.

    An action, then a reason, takes a second line if it needs one and there is room.
    """
    judged = context.snapshot.health
    found = group_alike(judged.findings) if judged is not None and height >= _LEAST_LINES else []
    found = sorted((pair for pair in found if pair[0].severity >= Severity.NOTICE), key=lambda pair: -pair[0].severity)
    if not found:
        return []
    with_action = 1 + 2 * len(found) <= height
    spare = height - 1 - 2 * len(found)  # lines for texts that are longer than a line
    more = len(found) - (height - 1)
    hint = f"e: all {len(found)}" if more > 0 and not with_action else "e: events"
    lines = [heading(context, "Findings", width, context.key_hint(hint))]
    for finding, devices in found:
        style = SEVERITY_STYLES.get(finding.severity, "label")
        mark = severity_mark(context.glyphs, finding.severity).strip() or context.glyphs.info
        runs: list[Run] = [(f" {mark} ", style), (f"ND {ranges_text(devices)}  " if devices else "", style)]
        reason = printable(sentence(finding, context.snapshot))
        if not with_action:
            lines += _text_lines(runs, reason, width, _REASON_CELLS, 1)
            continue
        do: list[Run] = [("     do: ", "label")]
        action = _text_lines(do, printable(finding.action), width, _ACTION_CELLS, 1 + (spare > 0))
        spare -= len(action) - 1
        drawn = _text_lines(runs, reason, width, _REASON_CELLS, 1 + (spare > 0))
        spare -= len(drawn) - 1
        lines += [*drawn, *action]
    return lines[:height]


def _text_lines(head: list[Run], text: str, width: int, indent: int, most: int) -> list[Line]:
    """Draws a text behind `head` in at most `most` lines, one or two; the second begins after `indent` cells."""
    room = width - line_width(head)
    first = text[: text.rfind(" ", 0, room + 1)]
    if most < 2 or not first or not width_of(first) <= room < width_of(text):
        return [fit((*head, (clip(text, room, mark=True), "text")), width)]
    rest = clip(text[len(first) + 1 :], width - indent, mark=True)
    return [fit((*head, (first, "text")), width), fit(((" " * indent, "text"), (rest, "text")), width)]
