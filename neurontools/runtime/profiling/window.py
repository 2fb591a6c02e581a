"""A profile that is taken in memory: for torch.profiler, torch_xla's start_trace, and whoever asks for one."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from neurontools.profile.chunks import TABLES
from neurontools.profile.metadata import Metadata, State
from neurontools.profile.profile import Profile
from neurontools.profile.table import Table
from neurontools.runtime.profiling.batch import Batch
from neurontools.runtime.profiling.ring import Ring
from neurontools.runtime.profiling.totals import LiveBlock, Totals

MOST_OPERATORS = 1_000_000
"""Of which the times are kept; older ones are dropped."""


class Window:
    """From `start` to `stop`, which gives the profile."""

    def __init__(
        self,
        ring: Ring,
        metadata: Callable[[], Metadata],
        living: Callable[[], Sequence[LiveBlock]],
        peaks: Callable[[], tuple[int, ...]],
    ) -> None:
        self._ring = ring
        self._metadata = metadata
        self._living = living
        self._peaks = peaks
        self._totals = Totals()
        self._batches: deque[Batch] = deque()
        self._dropped: dict[str, int] = {}
        self._operators = 0
        self._began_ns = 0

    def start(self) -> None:
        """Begins."""
        self._began_ns = time.time_ns()
        self._ring.start(self)

    def take(self, batch: Batch) -> None:
        """Keeps a batch."""
        self._totals.add(batch)
        self._batches.append(batch)
        self._operators += len(batch.operator_ns)
        while self._operators > MOST_OPERATORS and len(self._batches) > 1:
            gone = self._batches.popleft()
            self._operators -= len(gone.operator_ns)
            for name, columns in _events(gone).items():
                if name != "steps":
                    self._dropped[name] = self._dropped.get(name, 0) + len(columns[0])

    def begin_anew(self) -> None:
        """Forgets what was noted so far."""
        self._ring.drain()
        self._totals = Totals()
        self._batches.clear()
        self._dropped.clear()
        self._operators = 0
        self._began_ns = time.time_ns()

    def stop(self) -> Profile:
        """Ends it; the profile."""
        self._ring.stop(self)
        return self._profile()

    def so_far(self) -> Profile:
        """The profile of what was noted so far."""
        self._ring.drain()
        return self._profile()

    def _profile(self) -> Profile:
        ring, totals = self._ring, self._totals
        tables: dict[str, Any] = {kind.field: Table(kind.row) for kind in TABLES.values()}
        operator_ns = array("q")
        for batch in self._batches:
            operator_ns.extend(batch.operator_ns)
            for name, columns in _events(batch).items():
                tables[name].extend(columns)
        for name, columns in (
            ("graph_totals", totals.graph_totals()),
            ("operator_totals", totals.operator_totals(ring.graphs)),
            ("span_totals", totals.span_totals()),
            ("blocks", totals.blocks(self._living())),
        ):
            tables[name].extend(columns)
        return Profile(
            metadata=replace(self._metadata(), began_ns=self._began_ns),
            state=State(time.time_ns(), True, totals.recorded, self._dropped, self._peaks()),
            names=tuple(ring.names),
            stacks=tuple(ring.origins.stacks),
            graphs=tuple(ring.graphs),
            operators=tuple(ring.operators),
            operator_ns=operator_ns,
            **tables,
        )


def _events(batch: Batch) -> dict[str, list[array[int]]]:
    return {
        "executions": batch.executions,
        "spans": batch.spans,
        "memory_levels": batch.levels,
        "allocations": batch.allocations,
        "steps": batch.steps,
    }
