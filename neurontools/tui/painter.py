"""Writes what has changed on the screen straight to the terminal: the cells that differ and nothing else.

Textual draws whole regions and costs about as much for each of them as it takes to compare the whole screen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.color import ColorSystem
from rich.style import Style

from neurontools.util.terminal import escape_controls
from neurontools.views.drawing.lines import THEMES, Line, width_of

_LEAST_GAP = 6  # cells between two spans that are worth a cursor movement
_BEGIN, _END = "\x1b[?2026h", "\x1b[0m\x1b[?2026l"


@cache
def sgr(theme: str, style: str, color_system: ColorSystem | None) -> str:
    """The sequence that sets a style, whatever was set before."""
    codes = rich_style(theme, style).render("|", color_system=color_system).partition("|")[0]
    return "\x1b[0;" + codes[2:] if codes else "\x1b[0m"


def update(
    lines: Sequence[Line], before: Sequence[Line], theme: str, color_system: ColorSystem | None, width: int
) -> str:
    """The sequences that turn the screen of `before` into that of `lines`; both as many lines, `width` cells wide."""
    out: list[str] = []
    current = ""
    for row, (line, old) in enumerate(zip(lines, before, strict=True), 1):
        if line is old or line == old:
            continue
        runs: list[tuple[int, int, str, str]] = []
        end = 0
        for text, style in line:
            start, end = end, end + width_of(text)
            runs.append((start, end, text, style))
        first = 0
        for left, right in spans(line, old, width):
            out.append(f"\x1b[{row};{left + 1}H")
            while runs[first][1] <= left:
                first += 1
            for number in range(first, len(runs)):
                start, end, text, style = runs[number]
                if start >= right:
                    break
                first = number
                # Spans are cut inside a run only where each of its characters is one cell.
                part = text if end - start != len(text) else text[max(0, left - start) : right - start]
                wanted = sgr(theme, style, color_system)
                if wanted != current:
                    out.append(wanted)
                    current = wanted
                out.append(part if part.isprintable() else escape_controls(part))
    return f"{_BEGIN}{''.join(out)}{_END}" if out else ""


def spans(line: Line, before: Line, width: int) -> list[tuple[int, int]]:
    """Where two lines differ, in cells: from and to, ascending, near ones joined."""
    found: list[tuple[int, int]] = []
    new_runs, old_runs = iter(line), iter(before)
    new_text, new_style = next(new_runs, ("", ""))
    old_text, old_style = next(old_runs, ("", ""))
    position = 0
    while position < width:
        if not new_text or not old_text:
            if not new_text:
                following = next(new_runs, None)
                if following is None:
                    found.append((position, width))
                    break
                new_text, new_style = following
            if not old_text:
                earlier = next(old_runs, None)
                if earlier is None:
                    found.append((position, width))
                    break
                old_text, old_style = earlier
            continue
        if new_text == old_text:
            cells = width_of(new_text)
            if new_style != old_style:
                found.append((position, position + cells))
            position += cells
            new_text = old_text = ""
            continue
        if len(new_text) != width_of(new_text) or len(old_text) != width_of(old_text):
            # Wide characters: from the start of their run on, all is drawn anew.
            found.append((position, width))
            break
        length = min(len(new_text), len(old_text))
        if new_style != old_style:
            found.append((position, position + length))
        else:
            start = 0
            while start < length and new_text[start] == old_text[start]:
                start += 1
            end = length
            while end > start and new_text[end - 1] == old_text[end - 1]:
                end -= 1
            if start < end:
                found.append((position + start, position + end))
        position += length
        new_text, old_text = new_text[length:], old_text[length:]
    return _joined(found)


def _joined(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for left, right in found:
        if result and left - result[-1][1] < _LEAST_GAP:
            result[-1] = (result[-1][0], right)
        else:
            result.append((left, right))
    return result


@cache
def rich_style(theme: str, name: str) -> Style:
    """The style of this name in a theme."""
    style = THEMES[theme].style(name)
    return Style(
        color=style.color,
        bgcolor=style.background,
        bold=style.bold,
        dim=style.dim,
        reverse=style.reverse,
        underline=style.underline,
    )
