"""The peak of HBM and what made it, and collectives."""

from __future__ import annotations

from neurontools.profile.analysis import RunReport
from neurontools.profile.analysis.memory import LineMemory
from neurontools.profile.analysis.operators import UNKNOWN_LINE
from neurontools.profile.analysis.report import CollectiveUse
from neurontools.util.units import bytes_text, counted, duration_text, percent_text
from neurontools.views.drawing.columns import Column, chosen, count_column, row_line, title_line
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line
from neurontools.views.profile.parts import heading, labelled, name, plain_line, shown_place

_MOST_CATEGORIES = 5


def memory_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """The rank and core with the highest peak, by category and by line of the script."""
    rank = report.highest
    found, limit = rank.peak, rank.profile.metadata.hbm_limit_bytes
    of_limit = "" if not limit else f" of {bytes_text(limit)}"
    known = rank.hbm_peak_bytes
    where = "" if found is None else f", core {found.core}"
    who = f"rank {rank.number}{where}" if len(report.ranks) > 1 else where.removeprefix(", ")
    lines = [heading("Memory", f"peak {bytes_text(known)}{of_limit}{', ' if who else ''}{who}", width, glyphs)]
    if found is None:
        return [*lines, plain_line("when it was reached was not kept", width, "dim")]
    if found.highest_bytes > found.bytes:
        told = f"the peak itself is no longer kept; this is the highest that is, {bytes_text(found.bytes)}"
        lines.append(plain_line(told, width, "warn"))
    categories = sorted(found.by_category.items(), key=lambda each: -each[1])
    told = ", ".join(f"{category_text(key)} {bytes_text(size)}" for key, size in categories if size)
    lines.append(labelled("categories", [(told, "text")], width))
    columns = chosen(_SHARE_COLUMNS, width)
    if found.shares:
        lines.append(title_line(columns, width))
    lines += [row_line(columns, share, width) for share in found.shares[:most]]
    rest = found.shares[most:]
    if rest:
        told = f"{glyphs.ellipsis} {counted(len(rest), 'more line')}, {bytes_text(sum(share.bytes for share in rest))}"
        lines.append(plain_line(told, width, "dim"))
    return lines


def collective_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """Each kind of collective with its time on all ranks; nothing where there was none."""
    uses = report.collectives
    if not uses:
        return []
    columns = chosen(_COLLECTIVE_COLUMNS, width)
    note = "times include the wait for other ranks, bytes are in and out"
    lines = [heading("Collectives", note, width, glyphs), title_line(columns, width)]
    lines += [row_line(columns, use, width) for use in uses]
    awaited = report.straggler
    if awaited is not None:
        ratio = percent_text(awaited.split.ratio(awaited.split.collective_seconds), 1)
        told = f"rank {awaited.number} waits least ({ratio} of its time): the others wait for it"
        lines.append(plain_line(told, width, "warn"))
    return lines


def category_text(category: str) -> str:
    """A category of HBM in words."""
    return category.replace("_", " ")


def _who(share: LineMemory) -> str:
    if share.place is None:
        return UNKNOWN_LINE
    return f"{shown_place(share.place)} {name(share.place.function)}"


_SHARE_COLUMNS: tuple[Column[LineMemory], ...] = (
    Column("BYTES", 10, 0, lambda share: bytes_text(share.bytes)),
    count_column("COUNT", 8, 1, lambda share: share.count),
    Column("CATEGORY", 18, 1, lambda share: category_text(share.category), True),
    Column("LINE", 0, 0, _who, True),
)
_COLLECTIVE_COLUMNS: tuple[Column[CollectiveUse], ...] = (
    Column("COLLECTIVE", 32, 0, lambda use: name(use.name), True),
    count_column("COUNT", 10, 1, lambda use: use.count),
    Column("BYTES", 10, 1, lambda use: bytes_text(use.bytes)),
    Column("TIME", 10, 0, lambda use: duration_text(use.seconds)),
    Column("SHORTEST", 10, 2, lambda use: duration_text(min(use.seconds_by_rank))),
    Column("LONGEST", 10, 2, lambda use: duration_text(max(use.seconds_by_rank))),
)
