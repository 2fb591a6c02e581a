"""The graphs that were compiled, and why each had to be."""

from __future__ import annotations

from neurontools.profile.analysis import RunReport
from neurontools.profile.analysis.operators import GraphUse
from neurontools.util.units import UNKNOWN, counted, duration_text
from neurontools.views.drawing.columns import Column, chosen, count_column, row_line, title_line
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, fit_marked
from neurontools.views.profile.parts import flop_text, heading, name, plain_line, shown_place

_SHORT_HASH = 10


def graph_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """The graphs in the order of their first steps; of more than so many, those that took longest to compile."""
    graphs = report.graphs
    compiled = [graph for graph in graphs if not graph.was_cached]
    seconds = sum(graph.compile_seconds or 0.0 for graph in graphs)
    note = f"{counted(len(graphs), 'graph')}, {len(compiled)} compiled, {duration_text(seconds)}"
    lines = [heading("Graphs", note, width, glyphs)]
    if not graphs:
        return [*lines, plain_line("none was executed", width, "dim")]
    shown = sorted(graphs, key=lambda graph: -(graph.compile_seconds or 0.0))[:most]
    columns = chosen(_COLUMNS, width)
    lines.append(title_line(columns, width))
    for graph in graphs:
        if graph in shown:
            lines.append(row_line(columns, graph, width))
            lines.append(fit_marked(((f"{'':{_SHORT_HASH + 2}}why: {name(graph.reason) or UNKNOWN}", "dim"),), width))
    left = len(graphs) - len(shown)
    if left:
        lines.append(plain_line(f"{glyphs.ellipsis} {counted(left, 'graph')} more", width, "dim"))
    return lines


def cached_text(graph: GraphUse) -> str:
    """Whether it was compiled or found in the compile cache."""
    return UNKNOWN if graph.was_cached is None else "cached" if graph.was_cached else "compiled"


_COLUMNS: tuple[Column[GraphUse], ...] = (
    Column("GRAPH", _SHORT_HASH, 0, lambda graph: name(graph.hash_text)[:_SHORT_HASH], True),
    count_column("STEP", 7, 0, lambda graph: graph.first_step),
    Column("COMPILE", 9, 0, lambda graph: duration_text(graph.compile_seconds)),
    Column("CACHE", 8, 3, cached_text, True),
    count_column("RUNS", 9, 1, lambda graph: graph.executions),
    Column("TIME", 10, 1, lambda graph: duration_text(graph.seconds)),
    count_column("OPS", 6, 4, lambda graph: graph.operator_count),
    Column("FLOP", 12, 4, lambda graph: flop_text(graph.flops) if graph.flops else "0"),
    Column("LINE", 0, 2, lambda graph: shown_place(graph.place), True),
)
