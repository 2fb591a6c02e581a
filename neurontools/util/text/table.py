"""The ASCII table of the Neuron tools: titles centred over several lines, cells left-aligned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neurontools.util.light.generic import Generic, TypeVar
from neurontools.util.text.terminal import cell_width

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title, a line an element, and how to read a row's cell, which must be fit for a terminal."""

    title: tuple[str, ...]
    read: Callable[[Row], str]
    once: bool = False  # filled in the first row of a group only


def ascii_table(columns: Sequence[Column[Row]], groups: Sequence[Sequence[Row]]) -> str:
    """The table, every line ended by a newline; as soon as a group has more than one row, a rule ends each group."""
    heights = range(max(len(column.title) for column in columns))
    titles = [[column.title[line] if line < len(column.title) else "" for column in columns] for line in heights]
    cells = [[_cells(columns, row, position) for position, row in enumerate(group)] for group in groups]
    by_column = zip(*titles, *(row for group in cells for row in group), strict=True)
    widths = [max(map(cell_width, column)) for column in by_column]
    rule = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    lines = [rule, *(_line(titles_of_line, widths, _centred) for titles_of_line in titles), rule]
    ruled = any(len(group) > 1 for group in cells)
    for group in cells:
        lines += [_line(row, widths, _left) for row in group]
        if ruled:
            lines.append(rule)
    if not ruled:
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _cells(columns: Sequence[Column[Row]], row: Row, position: int) -> list[str]:
    return ["" if position and column.once else column.read(row) for column in columns]


def _line(cells: Sequence[str], widths: Sequence[int], pad: Callable[[str, int], str]) -> str:
    return "| " + " | ".join(map(pad, cells, widths)) + " |"


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def _centred(text: str, width: int) -> str:
    """An odd space goes to the right, as in the original; str.center puts it left at times."""
    gap = width - cell_width(text)
    return " " * (gap // 2) + text + " " * (gap - gap // 2)
