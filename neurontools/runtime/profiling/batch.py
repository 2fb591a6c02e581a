"""What was noted in a while, by columns, with the host's clock."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neurontools.profile.kinds import ALLOCATED
from neurontools.profile.rows import Allocation, Execution, MemoryLevels, Span, Step


@dataclass(slots=True)
class GraphSum:
    """Executions of one graph: how many, and the times of its operators added up and at their longest."""

    executions: int
    total_ns: int
    operator_count: int
    operators_ns: Any
    longest_ns: Any


@dataclass(slots=True)
class Batch:
    """Columns of the tables of a profile, and sums over the executions by number of graph."""

    executions: list[array[int]]
    operator_ns: array[int]
    spans: list[array[int]]
    levels: list[array[int]]
    allocations: list[array[int]]
    steps: list[array[int]]
    failures: list[int]
    sums: dict[int, GraphSum] = field(default_factory=dict)


def batch_of(offset_ns: int, events: Sequence[list[Any]], steps: list[Any], failures: list[int]) -> Batch:
    """Turns what the ring noted into columns."""
    executions, spans, levels, allocations = events
    columns, operator_ns, sums = _executions(executions, offset_ns)
    return Batch(
        executions=columns,
        operator_ns=operator_ns,
        spans=_columns(Span._fields, spans, offset_ns),
        levels=_columns(MemoryLevels._fields, levels, offset_ns),
        allocations=_columns(Allocation._fields, _spread(allocations), offset_ns),
        steps=_columns(Step._fields, steps, offset_ns, times=("start_ns", "end_ns")),
        failures=failures,
        sums=sums,
    )


def _columns(
    fields: tuple[str, ...],
    rows: list[Any],
    offset_ns: int,
    times: tuple[str, ...] = ("start_ns", "end_ns", "time_ns"),
) -> list[array[int]]:
    if not rows:
        return [array("q") for _ in fields]
    columns = [array("q", column) for column in zip(*rows, strict=True)]
    for name in times:
        if name in fields:
            at = fields.index(name)
            columns[at] = _array(np.frombuffer(columns[at], np.int64) + offset_ns)
    return columns


def _executions(rows: list[Any], offset_ns: int) -> tuple[list[array[int]], array[int], dict[int, GraphSum]]:
    """The columns of executions, the times of all their operators, and the sums by graph."""
    if not rows:
        return [array("q") for _ in Execution._fields], array("q"), {}
    by_entry: dict[Any, list[int]] = {}
    for index, row in enumerate(rows):
        by_entry.setdefault(row[0], []).append(index)
    parts: list[Any] = [None] * len(rows)
    sums = {}
    for entry, indices in by_entry.items():
        moments = np.array([rows[index][6] for index in indices], np.int64)
        took = np.diff(moments, axis=1)
        for index, part in zip(indices, took, strict=True):
            parts[index] = part
        sums[entry.number] = GraphSum(
            len(indices), int(took.sum()), entry.operator_count, took.sum(axis=0), took.max(axis=0)
        )
    entries, cores, steps, correlations, reasons, queued, times = zip(*rows, strict=True)
    columns = [
        array("q", [entry.number for entry in entries]),
        array("q", cores),
        array("q", steps),
        array("q", correlations),
        array("q", reasons),
        array("q", [each + offset_ns for each in queued]),
        array("q", [each[0] + offset_ns for each in times]),
        array("q", [each[-1] + offset_ns for each in times]),
        array("q", [entry.operator_count for entry in entries]),
    ]
    return columns, _array(np.concatenate(parts)), sums


def _spread(rows: list[Any]) -> list[Any]:
    """Allocations with those of executions' results written out."""
    if all(len(row) == len(Allocation._fields) for row in rows):
        return rows
    spread: list[Any] = []
    for row in rows:
        if len(row) == len(Allocation._fields):
            spread.append(row)
            continue
        time_ns, entry, core, addresses = row
        spread += [
            (time_ns, ALLOCATED, core, address, nbytes, 4, stack)
            for address, nbytes, stack in zip(addresses, entry.output_bytes, entry.output_stacks, strict=True)
        ]
    return spread


def _array(values: Any) -> array[int]:
    made = array("q")
    made.frombytes(np.ascontiguousarray(values, np.int64).tobytes())
    return made
