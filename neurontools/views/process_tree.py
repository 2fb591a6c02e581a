"""The tree of all processes that use Neuron devices, with their parents and children."""

from __future__ import annotations

from neurontools.driver.processes import ProcessTreeEntry
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.glyphs import ASCII, Glyphs
from neurontools.views.drawing.lines import Line, Run, TextPage, cell, clip, fit, line_width, printable
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scrolled_list, heading
from neurontools.views.process_table import BY_KEY, ProcessColumn

_COLUMNS = ("cores", "util", "mem", "user", "cpu", "steps")  # the most important first
_LEAST_TREE_CELLS = 40
_PID_CELLS = 9


def tree_rows(context: RenderContext) -> list[ProcessTreeEntry]:
    """Returns the trees, then the processes that use devices and are in no tree, as they run elsewhere."""
    trees = context.process_forest or ()
    known = {entry.pid for entry in trees}
    alone = (each.process for each in context.figures.by_pid.values() if each.pid not in known)
    return [*trees, *(ProcessTreeEntry(0, process.pid, process.command) for process in alone)]


def tree_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the rows of the tree as search entries."""
    known = context.figures.by_pid
    return [
        SearchEntry(str(entry.pid), f"{entry.pid} {entry.command}", (known[entry.pid],) if entry.pid in known else ())
        for entry in tree_rows(context)
    ]


def process_tree_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the tree as a scrolled list. Processes that use no device have only their command."""
    rows = tree_rows(context)
    users = sum(entry.pid in context.figures.by_pid for entry in rows)
    about = "" if context.process_forest else "parents and children are known only where processes run; "
    title = f"Process tree: {users} with Neuron devices, {len(rows) - users} parents and children"
    page = TextPage([heading(context, title, width, about + context.key_hint("Y: list, Enter: details"))])
    columns = _fitting_columns(width)
    titles: list[Run] = [(cell("PID", _PID_CELLS - 1, right=True) + " ", "column")]
    titles += [(cell(column.title, column.cells, right=not column.is_text) + " ", "column") for column in columns]
    page.add_lines(fit((*titles, ("COMMAND", "column")), width, "column"))
    branches = branch_texts([entry.depth for entry in rows], context.glyphs)
    add_scrolled_list(
        context,
        page,
        len(rows),
        height - len(page.lines),
        lambda at: _row_line(rows[at], branches[at], context.figures.by_pid.get(rows[at].pid), columns, width),
    )
    return page


def _fitting_columns(width: int) -> list[ProcessColumn]:
    shown: list[ProcessColumn] = []
    for column in (BY_KEY[key] for key in _COLUMNS):
        if _PID_CELLS + sum(each.cells + 1 for each in (*shown, column)) + _LEAST_TREE_CELLS <= width:
            shown.append(column)
    return shown


def _row_line(
    entry: ProcessTreeEntry, branch: str, figures: ProcessFigures | None, columns: list[ProcessColumn], width: int
) -> Line:
    base = "dim" if figures is None else "text"
    runs: list[Run] = [(f"{entry.pid:>{_PID_CELLS - 1}} ", "label" if figures is not None else "dim")]
    for column in columns:
        text = "" if figures is None else column.text(figures)
        runs.append((cell(text, column.cells, right=not column.is_text) + " ", base))
    room = width - line_width(runs) - len(branch)
    command = clip(printable(entry.command, 2 * width) or "-", max(1, room), mark=True)
    return fit((*runs, (branch, "rule"), (command, base)), width)


def branch_texts(depths: list[int], glyphs: Glyphs) -> list[str]:
    """Returns the lines that connect each row of a tree with its parent, from the depths of the rows."""
    corner, side, tee = ("`- ", "|  ", "|- ") if glyphs is ASCII else ("╰─ ", "│  ", "├─ ")
    texts: list[str] = []
    followed: set[int] = set()  # depths that have another row below, of the same parent
    for depth in reversed(depths):
        sides = "".join(side if level in followed else "   " for level in range(1, depth))
        texts.append(sides + (tee if depth in followed else corner) if depth else "")
        followed = {level for level in followed if level < depth} | {depth}
    return texts[::-1]
