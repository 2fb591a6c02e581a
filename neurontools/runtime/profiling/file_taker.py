"""Writes what the ring notes to the file of this worker, from a thread of its own, once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread

from neurontools.profile.metadata import Metadata, State
from neurontools.profile.writer import Definitions, ProfileWriter
from neurontools.runtime.profiling.batch import Batch
from neurontools.runtime.profiling.ring import Ring
from neurontools.runtime.profiling.totals import LiveBlock, Totals

INTERVAL_SECONDS = 1.0


class FileTaker:
    """Keeps a file up to date until `finish`. What the disk refuses ends the profile: `failure` says why.

    `living` and `peaks` tell of the storages that are there and the highest use of each core.
    """

    def __init__(
        self,
        ring: Ring,
        path: Path,
        metadata: Metadata,
        most_event_bytes: int,
        living: Callable[[], Sequence[LiveBlock]],
        peaks: Callable[[], tuple[int, ...]],
    ) -> None:
        self.failure: OSError | None = None
        self.totals = Totals()
        self._ring = ring
        self._living = living
        self._peaks = peaks
        self._writer = ProfileWriter(path, metadata, most_event_bytes)
        self._written = [0, 0, 0, 0]
        self._ended = Event()
        self._thread = Thread(target=self._run, name="neurontools-profile", daemon=True)

    def start(self) -> None:
        """Begins; where the system refuses a thread, all is written at the end."""
        self._ring.start(self)
        try:
            self._thread.start()
        except RuntimeError:
            return

    def take(self, batch: Batch) -> None:
        """Writes a batch; in the thread that drains the ring."""
        if self.failure is not None:
            return
        self.totals.add(batch)
        try:
            self._write(batch)
        except OSError as error:
            self.failure = error

    def finish(self, failure: str | None = None) -> None:
        """Takes the rest and ends the file."""
        self._ended.set()
        self._ring.stop(self)
        if self.failure is None:
            try:
                self._writer.add("blocks", self.totals.blocks(self._living()))
                self._writer.state(self._state(has_ended=True, failure=failure))
            except OSError as error:
                self.failure = error
        self._writer.close()

    @property
    def size_bytes(self) -> int:
        """What the file has now."""
        return self._writer.size_bytes

    @property
    def dropped(self) -> dict[str, int]:
        """Rows that were dropped, by table."""
        return self._writer.dropped

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS) and self.failure is None:
            if self._ring.is_on:
                self._ring.drain()

    def _write(self, batch: Batch) -> None:
        writer, ring, written = self._writer, self._ring, self._written
        new = Definitions(
            ring.names[written[0] :],
            ring.origins.stacks[written[1] :],
            ring.graphs[written[2] :],
            ring.operators[written[3] :],
        )
        writer.define(new)
        counts = (len(new.names), len(new.stacks), len(new.graphs), len(new.operators))
        self._written = [before + count for before, count in zip(written, counts, strict=True)]
        writer.add("steps", batch.steps)
        writer.add_executions(batch.executions, batch.operator_ns)
        writer.add("spans", batch.spans)
        writer.add("memory_levels", batch.levels)
        writer.add("allocations", batch.allocations)
        writer.add("graph_totals", self.totals.graph_totals())
        writer.add("operator_totals", self.totals.operator_totals(ring.graphs))
        writer.add("span_totals", self.totals.span_totals())
        writer.state(self._state(has_ended=False))

    def _state(self, *, has_ended: bool, failure: str | None = None) -> State:
        return State(
            ended_ns=time.time_ns(),
            has_ended=has_ended,
            recorded=self.totals.recorded,
            hbm_peak_bytes=self._peaks(),
            failure=failure,
        )
