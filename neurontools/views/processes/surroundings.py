"""The environment of a process and the tree that it is in, as a list to scroll through."""

from __future__ import annotations

from neurontools.driver.process_context import ProcessContext, ProcessTreeEntry
from neurontools.util.process_text import HIDDEN
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.line import Line, Page, clip, fit, foreign, plain, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED
from neurontools.views.entry import Entry

_NAME_CELLS = 28
_SEARCHED_CELLS = 1000


def surroundings_page(scene: Scene, shown: ProcessContext, width: int, height: int) -> Page:
    """The tree first, then the environment."""
    page = Page([heading(scene, "Tree and environment", width, "E plots, Esc back")])
    lines = [_problem(shown.problem, width)] if shown.problem else _lines(shown, width)
    list_height = max(1, height - len(page.lines))
    cursor = min(max(0, scene.cursor), len(lines) - 1)
    top = visible_top(cursor, scene.top, list_height, len(lines))
    rows = [
        styled(lines[position], SELECTED) if position == cursor else lines[position]
        for position in range(top, min(len(lines), top + list_height))
    ]
    page.add_list(rows, len(lines), list_height, top)
    return page


def surroundings_entries(shown: ProcessContext) -> list[Entry]:
    """What a search sees of the list."""
    return [Entry(str(number), plain(line)) for number, line in enumerate(_lines(shown, _SEARCHED_CELLS))]


def _lines(shown: ProcessContext, width: int) -> list[Line]:
    lines = [_relative(shown, relative, width) for relative in shown.tree]
    if shown.environment is None:
        lines.append(_problem("the environment is not for this user to see", width))
    else:
        lines += [_variable(name, value, width) for name, value in shown.environment]
        if not shown.environment:
            lines.append(_problem("the environment is empty", width))
    return lines


def _problem(text: str, width: int) -> Line:
    return fit(((clip(f" {text}", width, mark=True), "dim"),), width)


def _relative(shown: ProcessContext, relative: ProcessTreeEntry, width: int) -> Line:
    style = "strong" if relative.pid == shown.pid else "text"
    lead = "  " * relative.depth
    text = clip(f"{lead}{foreign(relative.command, 2 * width) or '-'}", max(1, width - 10), mark=True)
    return fit(((f" {relative.pid:>8} ", "label"), (text, style)), width)


def _variable(name: str, value: str, width: int) -> Line:
    cells = min(_NAME_CELLS, max(8, width // 3))
    shown_name = clip(foreign(name, 200), cells, mark=True)
    text = clip(foreign(value, 2 * width), max(1, width - cells - 3), mark=True)
    style = "warn" if value == HIDDEN else "text"
    return fit(((f" {shown_name:<{cells}} ", "label"), (text, style)), width)
