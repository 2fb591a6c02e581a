"""Lines of CSV that neither a terminal nor a spreadsheet acts on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from neurontools.util.text.terminal import visible

# What makes a spreadsheet take a cell for a formula; the last four are the wide forms, which some read as well.
_FORMULA_SIGNS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def csv_line(cells: Iterable[object]) -> str:
    """A line of cells with its line end; what comes from elsewhere goes through `foreign_cell` first."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(cells)
    return written.getvalue()


def foreign_cell(text: str) -> str:
    """Text from elsewhere (a command, a tag) as a cell: its control characters visible, no formula.

    A cell that a spreadsheet would compute, spaces before it or not, has an apostrophe before it, which spreadsheets
    take for "this is text".
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA_SIGNS) else shown
