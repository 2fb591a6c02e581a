"""The report as CSV: a table for each question, with a header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any

from neurontools.profile.analysis import RunReport
from neurontools.profile.analysis.steps import NS_PER_SECOND
from neurontools.util.formats import csv_line, foreign_cell
from neurontools.views.profile.document import GraphPart, OperatorPart, RankPart, document

TABLES = ("operators", "steps", "graphs", "ranks")
_STEP_COLUMNS = ("compile_ns", "input_wait_ns", "transfer_ns", "compute_ns", "collective_ns")
_RANK_COLUMNS = (
    *("rank", "host", "pid", "steps_total", "step_mean_seconds", "step_p50_seconds", "step_p99_seconds"),
    *("split.total_seconds", "split.host_seconds", "split.compile_seconds", "split.input_wait_seconds"),
    *("split.transfer_seconds", "split.compute_seconds", "split.collective_seconds", "split.busy_ratio"),
    *("executions_total", "execution_seconds", "flop_total", "mfu_ratio", "hbm_peak_bytes"),
)


def csv_lines(report: RunReport, table: str) -> Iterator[str]:
    """The lines of one of TABLES, a header first; what is unknown is an empty cell."""
    if table == "steps":
        yield from _steps(report)
        return
    whole = document(report)
    kinds: dict[str, tuple[Iterable[Any], tuple[str, ...]]] = {
        "operators": (whole.operators, _plain_fields(OperatorPart)),
        "graphs": (whole.graphs, _plain_fields(GraphPart)),
        "ranks": (whole.ranks, _RANK_COLUMNS),
    }
    rows, columns = kinds[table]
    yield csv_line(name.removeprefix("split.") for name in columns)
    for row in rows:
        yield csv_line(_cell(attrgetter(name)(row)) for name in columns)


def _plain_fields(kind: type[OperatorPart | GraphPart | RankPart]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "seconds_by_rank")


def _steps(report: RunReport) -> Iterator[str]:
    parts = [name.removesuffix("_ns") + "_seconds" for name in _STEP_COLUMNS]
    yield csv_line(["rank", "step", "total_seconds", "host_seconds", *parts, "executions", "flop_total"])
    for rank in report.ranks:
        for row in rank.profile.steps:
            times = (row.duration_ns, row.host_ns, *(getattr(row, name) for name in _STEP_COLUMNS))
            seconds = [time / NS_PER_SECOND for time in times]
            yield csv_line([rank.number, row.step, *seconds, row.executions, row.flops])


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return foreign_cell(value) if isinstance(value, str) else value
