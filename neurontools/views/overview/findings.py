"""What is wrong, gravest first, in the room at the end of the overview, so that nothing moves when it comes."""

from __future__ import annotations

from neurontools.model import Severity
from neurontools.model.health import alike, sentence
from neurontools.util.units import ranges_text
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.line import Line, Run, clip, fit, foreign
from neurontools.views.drawing.scene import Scene

_LEAST_LINES = 2
_STYLES = {Severity.CRITICAL: "bad", Severity.WARNING: "warn"}


def finding_lines(scene: Scene, width: int, height: int) -> list[Line]:
    """What is worse than a notice, in at most `height` lines: with what to do about it where there is room for all."""
    judged = scene.snapshot.health
    found = alike(judged.findings) if judged is not None and height >= _LEAST_LINES else []
    found = [(finding, devices) for finding, devices in found if finding.severity > Severity.NOTICE]
    if not found:
        return []
    with_action = 1 + 2 * len(found) <= height
    more = len(found) - (height - 1)
    hint = f"e: all {len(found)}" if more > 0 and not with_action else "e: events"
    lines = [heading(scene, "What is wrong", width, scene.key_hint(hint))]
    for finding, devices in found:
        style = _STYLES[finding.severity]
        mark = scene.glyphs.bad if finding.severity is Severity.CRITICAL else scene.glyphs.warn
        runs: list[Run] = [(f" {mark} ", style), (f"ND {ranges_text(devices)}  " if devices else "", style)]
        used = sum(len(text) for text, _ in runs)
        text = clip(foreign(sentence(finding, scene.snapshot)), width - used, mark=True)
        lines.append(fit((*runs, (text, "text")), width))
        if with_action:
            text = clip(foreign(finding.action), width - 9, mark=True)
            lines.append(fit((("     do: ", "dim"), (text, "dim")), width))
    return lines[:height]
