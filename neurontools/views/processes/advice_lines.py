"""What a running script could do better, as lines."""

from __future__ import annotations

import textwrap

from neurontools.model import Process, ScriptAdvice
from neurontools.views.drawing.line import Line, clip, fit, foreign

_LEAST_WIDTH = 30


def advice_lines(process: Process, width: int, room: int) -> list[Line]:
    """What costs most first, in at most `room` lines: what was measured and where, then what to do."""
    if not process.advice or room < 2 or width < _LEAST_WIDTH:
        return []
    lines: list[Line] = [fit(((" WHAT COULD BE BETTER", "column"),), width, "column")]
    for number, each in enumerate(process.advice):
        made = _lines(each, width)
        if len(lines) + len(made) > room - (number + 1 < len(process.advice)):
            lines.append(fit(((f" {len(process.advice) - number} more with neuron-run --advise", "dim"),), width))
            break
        lines += made
    return lines[:room]


def _lines(each: ScriptAdvice, width: int) -> list[Line]:
    where = f" at {foreign(each.place)}" if each.place is not None else ""
    text = f"{foreign(each.rule)}{where}: {foreign(each.measured)}"
    lines = [fit(((f" {clip(text, width - 1, mark=True)}", "warn"),), width)]
    wrapped = textwrap.wrap(f"do: {foreign(each.fix)}", width - 4, break_on_hyphens=False)
    return lines + [fit(((f"   {part}", "text"),), width) for part in wrapped]
