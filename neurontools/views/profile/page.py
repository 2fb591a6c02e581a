"""The whole report as one page of lines."""

from __future__ import annotations

from neurontools.profile.analysis import RunReport
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Page
from neurontools.views.profile.graphs import graph_lines
from neurontools.views.profile.memory import collective_lines, memory_lines
from neurontools.views.profile.operators import operator_lines
from neurontools.views.profile.overview import rank_lines, step_lines, title_lines


def profile_page(report: RunReport, width: int, glyphs: Glyphs, most: int) -> Page:
    """All sections; each table has at most `most` rows, that of the ranks all."""
    page = Page(title_lines(report, width))
    for lines in (
        step_lines(report, width, glyphs),
        rank_lines(report, width, glyphs),
        operator_lines(report, width, glyphs, most),
        graph_lines(report, width, glyphs, most),
        memory_lines(report, width, glyphs, most),
        collective_lines(report, width, glyphs),
    ):
        if lines:
            page.add((), *lines)
    return page
