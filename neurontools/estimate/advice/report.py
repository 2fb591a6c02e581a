"""Advice as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from neurontools.estimate.advice.finding import Advice, Truth
from neurontools.util.terminal import escape_controls

_WIDTH = 100
_TITLES = {
    Truth.SCRIPT: "advice (facts of the script, true on the device too)",
    Truth.CPU: "advice (times of this CPU, which may be others elsewhere)",
}


def text(found: Sequence[Advice], most: int | None = None) -> str:
    """The first `most`, or all with their sources; empty where there is none."""
    lines: list[str] = []
    shown = found[:most]
    for truth, title in _TITLES.items():
        of_this = [each for each in shown if each.truth is truth]
        if of_this:
            lines.append(title)
        for each in of_this:
            lines += _lines(each, with_source=most is None)
    if len(shown) < len(found):
        lines.append(f"{len(found) - len(shown)} more with --advise")
    return "\n".join(lines) + "\n" if lines else ""


def _lines(each: Advice, *, with_source: bool) -> list[str]:
    where = "" if each.place is None else f" at {escape_controls(each.place)}"
    parts = [
        f"  {each.rule}{where}: {escape_controls(each.measured)}",
        f"    do: {each.fix}",
        f"    effect ({each.effect_is.value}): {each.effect}",
    ]
    if with_source:
        parts.append(f"    source: {each.source}")
    return [
        line
        for part in parts
        for line in textwrap.wrap(part, _WIDTH, subsequent_indent="      ", break_on_hyphens=False)
    ]
