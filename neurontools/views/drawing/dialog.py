"""A dialog drawn over a page: a title, some text, and options to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Page, Target, cell, clip, fit, width_of
from neurontools.views.drawing.style import SELECTED

_LEAST_CELLS = 24


@dataclass(frozen=True, slots=True)
class Dialog:
    """What a dialog shows. Without options it is text that can be scrolled; `top` is its first visible line."""

    title: str
    text: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    cursor: int = 0
    top: int = 0
    hint: str = "Enter choose, Esc close"


def over(page: Page, dialog: Dialog, glyphs: Glyphs, width: int, height: int) -> Page:
    """The page with the dialog in its middle; whatever is beside it stays."""
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
    lines: list[tuple[Line, Target | None]] = [((_edge(dialog.title, inner, glyphs),), None)]
    for position in range(top, min(len(content), top + rows)):
        number = position - first_option
        text = cell(content[position], inner)
        style = "text"
        target = None
        if number >= 0 and dialog.options:
            style = "strong" + SELECTED if number == dialog.cursor else "text"
            target = Target(0, left, left + inner + 4, "option", str(number))
        lines.append((((f"{bar} ", "heading"), (text, style), (f" {bar}", "heading")), target))
    more = f" {top + rows}/{len(content)}" if rows < len(content) else ""
    hint = clip(dialog.hint + more, inner, mark=True)
    lines.append((((f"{bar} ", "heading"), (cell(hint, inner), "dim"), (f" {bar}", "heading")), None))
    lines.append((((glyphs.rule * (inner + 4), "heading"),), None))
    result = Page(list(page.lines))
    for number, (line, target) in enumerate(lines):
        row = above + number
        if row >= height:
            break
        under = result.lines[row]
        box = fit(line, min(width - left, inner + 4))
        result.lines[row] = fit((*_head(under, left), *box, *_tail(under, left + inner + 4, width)), width)
        if target is not None:
            result.targets.append(Target(row, target.left, target.right, target.action, target.argument))
    return result


def _edge(title: str, inner: int, glyphs: Glyphs) -> tuple[str, str]:
    text = clip(f"{glyphs.rule} {title} ", inner + 4)
    return (text + glyphs.rule * (inner + 4 - width_of(text)), "heading")


def _head(line: Line, width: int) -> Line:
    return fit(line, width)


def _tail(line: Line, start: int, width: int) -> Line:
    """The cells of a line from `start` on; a wide character that is cut in two becomes spaces."""
    kept: list[tuple[str, str]] = []
    position = 0
    for text, style in line:
        cells = width_of(text)
        if position >= start:
            kept.append((text, style))
        elif position + cells > start:
            head = clip(text, start - position)
            rest = text[len(head) :]
            gap = position + width_of(head)
            if gap < start and rest:  # the cut goes through a wide character
                rest = " " * (width_of(rest[0]) - (start - gap)) + rest[1:]
            kept.append((rest, style))
        position += cells
    return fit(tuple(kept), max(0, width - start))
