"""Sums over a whole profile, whatever of its events is dropped."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from neurontools.profile.definitions import Graph
from neurontools.profile.kinds import FREED
from neurontools.profile.rows import Block, GraphTotal, OperatorTotal, SpanTotal
from neurontools.runtime.profiling.batch import Batch

LiveBlock = tuple[int, int, int, int]
"""A storage that is there now: address, bytes, core, category."""


class Totals:
    """Sums of all batches so far, and since when which storage is there."""

    def __init__(self) -> None:
        self.recorded: dict[str, int] = {}
        self._graphs: dict[int, list[int]] = {}
        self._operators: dict[int, tuple[Any, Any]] = {}
        self._spans: dict[tuple[int, int], list[int]] = {}
        self._allocated: dict[int, tuple[int, int]] = {}

    def add(self, batch: Batch) -> None:
        """Adds a batch."""
        for number, each in batch.sums.items():
            total = self._graphs.setdefault(number, [0, 0, 0])
            total[0] += each.executions
            total[2] += each.total_ns
            before = self._operators.get(number)
            if before is None:
                self._operators[number] = each.operators_ns, each.longest_ns
            else:
                self._operators[number] = before[0] + each.operators_ns, np.maximum(before[1], each.longest_ns)
        for number in batch.failures:
            self._graphs.setdefault(number, [0, 0, 0])[1] += 1
        kinds, names, _, _, begun, ended, nbytes, *_ = batch.spans
        for kind, name, begin, end, moved in zip(kinds, names, begun, ended, nbytes, strict=True):
            span = self._spans.setdefault((kind, name), [0, 0, 0])
            span[0] += 1
            span[1] += end - begin
            span[2] += max(0, moved)
        self._blocks(batch.allocations)
        for table, columns in (
            ("executions", batch.executions),
            ("spans", batch.spans),
            ("memory_levels", batch.levels),
            ("allocations", batch.allocations),
            ("steps", batch.steps),
        ):
            self.recorded[table] = self.recorded.get(table, 0) + len(columns[0])

    def _blocks(self, columns: Sequence[array[int]]) -> None:
        times, actions, _, addresses, _, _, stacks = columns
        allocated = self._allocated
        for time_ns, action, address, stack in zip(times, actions, addresses, stacks, strict=True):
            if action == FREED:
                allocated.pop(address, None)
            else:
                allocated[address] = time_ns, stack

    def graph_totals(self) -> list[array[int]]:
        """The columns of GraphTotal."""
        return _columns(GraphTotal._fields, [(number, *total) for number, total in sorted(self._graphs.items())])

    def operator_totals(self, graphs: Sequence[Graph]) -> list[array[int]]:
        """The columns of OperatorTotal."""
        rows: list[tuple[int, ...]] = []
        for number, (total, longest) in sorted(self._operators.items()):
            first = graphs[number].first_operator
            rows += zip(range(first, first + len(total)), total.tolist(), longest.tolist(), strict=True)
        return _columns(OperatorTotal._fields, rows)

    def span_totals(self) -> list[array[int]]:
        """The columns of SpanTotal."""
        return _columns(SpanTotal._fields, [(*key, *total) for key, total in sorted(self._spans.items())])

    def blocks(self, living: Sequence[LiveBlock]) -> list[array[int]]:
        """The columns of Block, for the storages that are there now."""
        rows = []
        for address, nbytes, core, category in living:
            time_ns, stack = self._allocated.get(address, (-1, -1))
            rows.append((address, nbytes, core, category, stack, time_ns))
        return _columns(Block._fields, rows)


def _columns(fields: tuple[str, ...], rows: Sequence[tuple[int, ...]]) -> list[array[int]]:
    if not rows:
        return [array("q") for _ in fields]
    return [array("q", column) for column in zip(*rows, strict=True)]
