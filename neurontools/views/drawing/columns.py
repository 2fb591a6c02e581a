"""Tables of a page: columns of which the less needed ones are left out on narrow screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from neurontools.util.units import short_count_text
from neurontools.views.drawing.line import Line, Run, cell, clip, fit

Row = TypeVar("Row")
_LEAST_REST_CELLS = 12


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column. `rank` says how soon it is left out; with no `cells` it gets what the others leave."""

    title: str
    cells: int
    rank: int
    text: Callable[[Row], str]
    is_text: bool = False
    style: Callable[[Row], str] = lambda _row: "text"


def count_column(
    title: str,
    cells: int,
    rank: int,
    count: Callable[[Row], int | None],
    style: Callable[[Row], str] = lambda _row: "text",
) -> Column[Row]:
    """A column of counts, which are told in fewer digits where they don't fit: a number that is cut is another one."""
    return Column(title, cells, rank, lambda row: short_count_text(count(row), cells), False, style)


def chosen(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """The columns that have room, with their cells; a space is behind each."""
    kept: list[Column[Row]] = []
    used = 1
    for column in sorted(columns, key=lambda column: column.rank):
        if column.cells and used + column.cells + 1 <= width:
            kept.append(column)
            used += column.cells + 1
    rest = width - used
    placed = []
    for column in columns:
        if column in kept:
            placed.append((column, column.cells))
        elif not column.cells and rest >= _LEAST_REST_CELLS:
            placed.append((column, rest - 1))
    return placed


def title_line(columns: Sequence[tuple[Column[Row], int]], width: int) -> Line:
    """The titles."""
    runs: list[Run] = [(" ", "column")]
    for column, cells in columns:
        runs.append((cell(column.title, cells, right=not column.is_text) + " ", "column"))
    return fit(runs, width, "column")


def row_line(columns: Sequence[tuple[Column[Row], int]], row: Row, width: int) -> Line:
    """One row."""
    runs: list[Run] = [(" ", "text")]
    for column, cells in columns:
        text = column.text(row)
        shown = cell(text, cells, right=not column.is_text) if column.cells else clip(text, cells, mark=True)
        runs += [(shown, column.style(row)), (" ", "text")]
    return fit(runs, width)
