"""The operators that took most, by time, FLOPs or bytes, with their lines of the script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.profile.analysis import RunReport
from neurontools.profile.analysis.operators import OperatorUse, largest_uses
from neurontools.profile.definitions import ENGINE_NAMES
from neurontools.util.units import UNKNOWN, bytes_text, duration_text, percent_text
from neurontools.views.drawing.columns import Column, chosen, count_column, row_line, title_line
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line
from neurontools.views.profile.parts import flop_text, heading, name, plain_line, shown_place

_ORDERS: tuple[tuple[str, Callable[[OperatorUse], float]], ...] = (
    ("time", lambda use: use.seconds),
    ("FLOPs", lambda use: use.flops),
    ("bytes", lambda use: use.bytes),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """An operator beside the whole that it is a part of."""

    use: OperatorUse
    share_ratio: float | None
    spread: str  # of its time over the ranks


def operator_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Three tables: by time, by FLOPs and by bytes, each with at most so many rows."""
    lines: list[Line] = []
    for order, quantity in _ORDERS:
        whole = sum(map(quantity, report.operators))
        uses = largest_uses(report.operators, quantity, most)
        columns = chosen(_columns(len(report.ranks) > 1), width)
        more = len(report.operators) - len(uses)
        note = f"{len(report.operators)} in all" if more else ""
        lines += [heading(f"Operators by {order}", note, width, glyphs)]
        if not uses:
            lines.append(plain_line(f"none has any {order}", width, "dim"))
            continue
        lines.append(title_line(columns, width))
        rows = (_Row(use, quantity(use) / whole if whole else None, _spread(use)) for use in uses)
        lines += [row_line(columns, row, width) for row in rows]
    return lines


def operator_name(use: OperatorUse) -> str:
    """Its name, fit to show, and whether it computed gradients."""
    return f"{name(use.name).removeprefix('aten::')}{' (backward)' if use.is_backward else ''}"


def _spread(use: OperatorUse) -> str:
    """How many times longer it took on the slowest rank than on the fastest."""
    times = [seconds for seconds in use.seconds_by_rank if seconds > 0]
    return f"{max(times) / min(times):.1f}x" if len(times) > 1 else UNKNOWN


def _columns(is_several: bool) -> tuple[Column[_Row], ...]:
    columns: tuple[Column[_Row], ...] = (
        Column("SHARE", 6, 0, lambda row: percent_text(row.share_ratio, 1)),
        Column("TIME", 10, 1, lambda row: duration_text(row.use.seconds)),
        count_column("COUNT", 10, 4, lambda row: row.use.count),
        Column("MEAN", 9, 5, lambda row: duration_text(row.use.seconds / row.use.count if row.use.count else None)),
        Column("FLOP", 12, 2, lambda row: flop_text(row.use.flops) if row.use.flops else "0"),
        Column("BYTES", 9, 2, lambda row: bytes_text(row.use.bytes)),
        Column("ENGINE", 11, 6, lambda row: ENGINE_NAMES[row.use.engine], True),
        Column("OPERATOR", 34, 0, lambda row: operator_name(row.use), True),
        Column("LINE", 24, 0, lambda row: shown_place(row.use.place), True),
        Column("RESULT", 0, 7, lambda row: name(row.use.main_result) or UNKNOWN, True),
    )
    spread: Column[_Row] = Column("RANKS", 6, 3, lambda row: row.spread)
    ranks = (spread,) if is_several else ()
    return (*columns[:4], *ranks, *columns[4:])
