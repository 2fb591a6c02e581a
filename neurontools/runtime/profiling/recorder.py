"""Writes what the ring notes once a second, from a thread of its own: to the file of this worker, or to who asked."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event, Thread

from neurontools.profile.encoder import Definitions, ProfileEncoder
from neurontools.profile.metadata import State
from neurontools.profile.rows import Step
from neurontools.runtime.profiling.batch import Batch
from neurontools.runtime.profiling.ring import Ring
from neurontools.runtime.profiling.totals import LiveBlock, Totals

INTERVAL_SECONDS = 1.0


_START = Step._fields.index("start_ns")
_NEVER = 1 << 62


class Recorder:
    """Keeps a profile up to date until `finish`. What its writer refuses ends the profile: `failure` says why.

    `living` and `peaks` tell of the storages that are there and the highest use of each core.
    """

    def __init__(
        self,
        ring: Ring,
        writer: ProfileEncoder,
        living: Callable[[], Sequence[LiveBlock]],
        peaks: Callable[[], tuple[int, ...]],
    ) -> None:
        self.failure: OSError | None = None
        self.totals = Totals()
        self._ring = ring
        self._living = living
        self._peaks = peaks
        self._writer = writer
        self._written = [0, 0, 0, 0]
        self._began_ns = _NEVER
        self._ended = Event()
        self._thread = Thread(target=self._run, name="neurontools-profile", daemon=True)

    def start(self, *, is_at_step: bool = True) -> None:
        """Begins; where the system refuses a thread, all is written at the end.

        `is_at_step`: a step begins now; else the one that is under way is left out.
        """
        self._began_ns = self._ring.start(self, is_at_step=is_at_step)
        try:
            self._thread.start()
        except RuntimeError:
            return

    def take(self, batch: Batch) -> None:
        """Writes a batch; in the thread that drains the ring."""
        if self.failure is not None:
            return
        if len(batch.steps[0]):
            batch = replace(batch, steps=_whole(batch.steps, self._began_ns))
        self.totals.add(batch)
        try:
            self._write(batch)
        except OSError as error:
            self.failure = error

    def finish(self, failure: str | None = None) -> None:
        """Takes the rest and ends the profile."""
        self._ended.set()
        self._ring.stop(self)
        if self.failure is None:
            try:
                self._writer.add("blocks", self.totals.blocks(self._living()))
                self._writer.state(self._state(has_ended=True, failure=failure))
            except OSError as error:
                self.failure = error

    def abandon(self) -> None:
        """Leaves it without an end, if it has none."""
        self._ended.set()
        self._ring.stop(self)

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


def _whole(steps: list[array[int]], began_ns: int) -> list[array[int]]:
    """The steps that began when the profile had."""
    first = next((row for row, start_ns in enumerate(steps[_START]) if start_ns >= began_ns), len(steps[_START]))
    return [column[first:] for column in steps] if first else steps
