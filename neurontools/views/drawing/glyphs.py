"""Character sets of the pages, and the bars, sparklines and dialogs drawn with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from neurontools.views.drawing.lines import SELECTED, ClickTarget, Line, Run, TextPage, cell, clip, fit, width_of

_WITHOUT_BRAILLE = ("linux", "vt", "cons")
_NEARLY_FULL_MEMORY_RATIO, _FULL_MEMORY_RATIO = 0.8, 0.95
_LEAST_CELLS = 24


@dataclass(frozen=True, slots=True, eq=False)
class Glyphs:
    """A character set for drawing pages; `levels` and `fractions` are ordered from empty to full.

    Compares by identity: the cache of bars uses character sets as keys, and hashing all fields took longer than drawing
    a bar.
    """

    full: str
    track: str  # character of the empty part of a bar
    fractions: str  # characters for a partly full cell, from 1/8 to 7/8; "": bars have whole cells only
    levels: str  # characters of a sparkline, from lowest to highest value
    thin_full: str  # filled part of a thin bar, which shows memory
    thin_half: str  # half a cell of a thin bar; "": thin bars have whole cells only
    thin_track: str
    rule: str
    corners: str  # corners of a frame: top left and right, bottom left and right, and the ends of a rule inside it
    opened: str
    closed: str
    leaf: str
    left: str  # opening mark of the current tab
    right: str
    position: str  # mark of the shown moment on the scrubber
    mark: str  # mark of a tagged row
    ellipsis: str
    good: str  # mark of good health; the marks `warn` and `bad` differ in shape, not only in colour
    warn: str
    bad: str
    ascending: str
    descending: str
    recording: str
    neighbour: str
    horizontal: str
    vertical: str
    tick: str  # tick mark before a label of a time axis
    info: str  # mark of an event with severity info on a time axis
    heat: str  # characters of the steps of the heat scale, from low to full utilization
    held: str  # mark of a held but idle core in a heat map
    free: str
    is_dotted: bool = False  # plots draw with braille characters of 2 by 4 dots


UNICODE = Glyphs(
    full="█",
    track="·",
    fractions="▏▎▍▌▋▊▉",
    levels=" ▁▂▃▄▅▆▇█",
    thin_full="━",
    thin_half="╸",
    thin_track="─",
    rule="─",
    corners="╭╮╰╯├┤",
    opened="▾ ",
    closed="▸ ",
    leaf="  ",
    left=">",
    right="<",
    position="◆",
    mark="●",
    ellipsis="…",
    good="✓",
    warn="▲",
    bad="✗",
    ascending="▲",
    descending="▼",
    recording="●",
    neighbour="◂",
    horizontal="──",
    vertical="│",
    tick="╵",
    info="•",
    heat="▁▂▃▄▅▆▇█",
    held="▫",
    free="·",
    is_dotted=True,
)


BLOCKS = replace(UNICODE, is_dotted=False)
"""Character set for terminals whose fonts lack braille, such as the Linux console."""


ASCII = Glyphs(
    full="#",
    track=".",
    fractions="",
    levels=" .:-=+*%#",
    thin_full="=",
    thin_half="",
    thin_track="-",
    rule="-",
    corners="++++++",
    opened="- ",
    closed="+ ",
    leaf="  ",
    left=">",
    right="<",
    position="O",
    mark="*",
    ellipsis="~",
    good="ok",
    warn="!",
    bad="X",
    ascending="^",
    descending="v",
    recording="REC",
    neighbour="<",
    horizontal="--",
    vertical="|",
    tick="|",
    info="o",
    heat=":-=+*x%#",
    held="_",
    free=".",
)


def glyphs_for(*, is_ascii: bool, terminal: str) -> Glyphs:
    """Returns the character set that a terminal can show; `terminal` is the value of TERM."""
    if is_ascii:
        return ASCII
    return BLOCKS if terminal.startswith(_WITHOUT_BRAILLE) else UNICODE


def memory_style(ratio: float | None) -> str:
    """Returns the style of a memory bar: a warning style from 80% use on, another from 95% on."""
    if ratio is None:
        return "dim"
    return "bad" if ratio >= _FULL_MEMORY_RATIO else "warn" if ratio >= _NEARLY_FULL_MEMORY_RATIO else "memory"


@lru_cache(4096)
def _filled_and_track(filled_eighths: int, width: int, glyphs: Glyphs) -> tuple[str, str]:
    whole, eighths = divmod(filled_eighths, 8)
    bar = glyphs.full * whole
    if glyphs.fractions and eighths and whole < width:
        bar += glyphs.fractions[eighths - 1]
    elif eighths >= 4 and whole < width:
        bar += glyphs.full
    return bar, glyphs.track * (width - len(bar))


def bar(ratio: float | None, width: int, glyphs: Glyphs, style: str = "busy") -> tuple[Run, ...]:
    """Draws a bar of `width` cells, filled in proportion to `ratio` (0..1); an empty bar if the ratio is unknown."""
    if width <= 0:
        return ()
    filled, track = _filled_and_track(round(_bounded(ratio) * width * 8), width, glyphs)
    return ((filled, style), (track, "track")) if filled else ((track, "track"),)


def _bounded(ratio: float | None) -> float:
    return 0.0 if ratio is None or not math.isfinite(ratio) else min(1.0, max(0.0, ratio))


def thin_bar(ratio: float | None, width: int, glyphs: Glyphs, style: str = "memory") -> tuple[Run, ...]:
    """Draws the thin bar that shows memory use. Any ratio above 0 fills at least half a cell."""
    if width <= 0:
        return ()
    bounded = _bounded(ratio)
    halves = max(round(bounded * width * 2), 1 if bounded else 0)
    whole, half = divmod(halves, 2)
    filled = glyphs.thin_full * whole + (glyphs.thin_half or glyphs.thin_full) * half
    track = glyphs.thin_track * (width - len(filled))
    return tuple([run for run in ((filled, style), (track, "track")) if run[0]])


def stacked_bar(ratios: Sequence[tuple[float | None, str]], width: int, glyphs: Glyphs) -> tuple[Run, ...]:
    """Draws a bar of several parts in whole cells. `ratios` has each part's share of the bar (0..1) and style."""
    runs: list[Run] = []
    used, reached = 0, 0.0
    for ratio, style in ratios:
        reached = min(1.0, reached + max(0.0, ratio or 0.0))
        cells = round(reached * width) - used
        if cells > 0:
            runs.append((glyphs.full * cells, style))
            used += cells
    if used < width:
        runs.append((glyphs.track * (width - used), "track"))
    return tuple(runs)


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs, highest: float = 1.0) -> str:
    """Draws the last `width` values as a sparkline, newest at the right. An unknown value leaves a gap."""
    top = len(glyphs.levels) - 1
    scale = top / highest if highest > 0 else 0.0
    shown = values[-width:] if width > 0 else ()
    cells = []
    for value in shown:
        if value is None or value != value:  # the value is None or NaN; only NaN differs from itself
            cells.append(" ")
        else:
            level = math.ceil(value * scale - 1e-9)
            # Draws 0 as the lowest visible level, so that it differs from a gap.
            cells.append(glyphs.levels[max(1, min(top, level))])
    return " " * (width - len(cells)) + "".join(cells)


@dataclass(frozen=True, slots=True)
class Dialog:
    """The content of a dialog. `top` is the first visible line of the text; a dialog without options can scroll."""

    title: str
    text: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    cursor: int = 0
    top: int = 0
    hint: str = "Enter choose, Esc close"


def draw_dialog(page: TextPage, dialog: Dialog, glyphs: Glyphs, width: int, height: int) -> TextPage:
    """Draws a dialog in the middle of a page; a click on an option triggers the action "option" with its number."""
    content = [*dialog.text, *([""] if dialog.text and dialog.options else []), *dialog.options]
    inner = max(_LEAST_CELLS, width_of(dialog.title), width_of(dialog.hint), *(width_of(text) for text in content))
    inner = max(1, min(inner, width - 4))
    rows = max(1, min(len(content), height - 3))
    first_option = len(content) - len(dialog.options)
    top = min(dialog.top, max(0, len(content) - rows))
    if dialog.options:
        top = max(0, min(first_option + dialog.cursor - rows + 1, len(content) - rows))
    left = max(0, (width - inner - 4) // 2)
    above = max(0, (height - rows - 3) // 2)
    bar = glyphs.vertical
    border = clip(f"{glyphs.rule} {dialog.title} ", inner + 4)
    border += glyphs.rule * (inner + 4 - width_of(border))
    lines: list[tuple[Line, ClickTarget | None]] = [(((border, "heading"),), None)]
    for position in range(top, min(len(content), top + rows)):
        number = position - first_option
        text = cell(content[position], inner)
        style = "text"
        target = None
        if number >= 0 and dialog.options:
            style = "strong" + SELECTED if number == dialog.cursor else "text"
            target = ClickTarget(0, left, left + inner + 4, "option", str(number))
        lines.append((((f"{bar} ", "heading"), (text, style), (f" {bar}", "heading")), target))
    more = f" {top + rows}/{len(content)}" if rows < len(content) else ""
    hint = clip(dialog.hint + more, inner, mark=True)
    lines.append((((f"{bar} ", "heading"), (cell(hint, inner), "dim"), (f" {bar}", "heading")), None))
    lines.append((((glyphs.rule * (inner + 4), "heading"),), None))
    result = TextPage(list(page.lines))
    for number, (line, target) in enumerate(lines):
        row = above + number
        if row >= height:
            break
        under = result.lines[row]
        box = fit(line, min(width - left, inner + 4))
        result.lines[row] = fit((*fit(under, left), *box, *_cells_from(under, left + inner + 4, width)), width)
        if target is not None:
            result.targets.append(target._replace(row=row))
    return result


def _cells_from(line: Line, start: int, width: int) -> Line:
    """Returns the part of a line from cell `start` on. Replaces a two-cell character cut at `start` with spaces."""
    runs: list[tuple[str, str]] = []
    position = 0
    for text, style in line:
        cells = width_of(text)
        if position >= start:
            runs.append((text, style))
        elif position + cells > start:
            head = clip(text, start - position)
            rest = text[len(head) :]
            gap = position + width_of(head)
            if gap < start and rest:  # the cut splits a two-cell character
                rest = " " * (width_of(rest[0]) - (start - gap)) + rest[1:]
            runs.append((rest, style))
        position += cells
    return fit(tuple(runs), max(0, width - start))
