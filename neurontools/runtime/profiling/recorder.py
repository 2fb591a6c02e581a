"""Consumers of the profile ring: ProfileRecorder writes events to a file or stream, InMemoryProfile stores them."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from neurontools.driver.environment import (
    INSPECT_ENABLE,
    INSPECT_MOST_EVENTS,
    INSPECT_OUTPUT_DIRECTORY,
    PROFILE_RUN,
    PROFILE_STEPS,
)
from neurontools.driver.neuron_runtime import parse_profile_steps
from neurontools.profile.chunks import TABLES
from neurontools.profile.definitions import FREED, GraphDefinition, ProfileMetadata, ProfileState
from neurontools.profile.profile import Block, ColumnTable, GraphTotal, OperatorTotal, Profile, SpanTotal, TrainingStep
from neurontools.profile.writer import NewDefinitions, ProfileEncoder
from neurontools.runtime.profiling.ring import EventBatch, ProfileRing

LiveBlock = tuple[int, int, int, int]
"""A live storage: address, bytes, core, category."""


class ProfileTotals:
    """Sums over a whole profile, including dropped events, and the allocation time of each live storage."""

    def __init__(self) -> None:
        self.recorded: dict[str, int] = {}
        self._graphs: dict[int, list[int]] = {}
        self._operators: dict[int, tuple[Any, Any]] = {}
        self._spans: dict[tuple[int, int], list[int]] = {}
        self._allocated: dict[int, tuple[int, int]] = {}

    def add(self, batch: EventBatch) -> None:
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
        kinds, names, _, _, begun, ended, nbytes, *_ = batch.tables["spans"]
        for kind, name, begin, end, moved in zip(kinds, names, begun, ended, nbytes, strict=True):
            span = self._spans.setdefault((kind, name), [0, 0, 0])
            span[0] += 1
            span[1] += end - begin
            span[2] += max(0, moved)
        times, actions, _, addresses, _, _, stacks = batch.tables["allocations"]
        for time_ns, action, address, stack in zip(times, actions, addresses, stacks, strict=True):
            if action == FREED:
                self._allocated.pop(address, None)
            else:
                self._allocated[address] = time_ns, stack
        for table, columns in batch.tables.items():
            self.recorded[table] = self.recorded.get(table, 0) + len(columns[0])

    def tables(self, graphs: Sequence[GraphDefinition]) -> dict[str, list[array[int]]]:
        """Returns three tables of totals: by graph, by operator and by span name. A table is a list of columns."""
        operators: list[tuple[int, ...]] = []
        for number, (total, longest) in sorted(self._operators.items()):
            first = graphs[number].first_operator
            operators += zip(range(first, first + len(total)), total.tolist(), longest.tolist(), strict=True)
        by_graph = [(number, *total) for number, total in sorted(self._graphs.items())]
        return {
            "graph_totals": _columns(GraphTotal._fields, by_graph),
            "operator_totals": _columns(OperatorTotal._fields, operators),
            "span_totals": _columns(SpanTotal._fields, [(*key, *total) for key, total in sorted(self._spans.items())]),
        }

    def blocks(self, living: Sequence[LiveBlock]) -> list[array[int]]:
        """Returns the live storages as columns, in the order of Block's fields."""
        rows = []
        for address, nbytes, core, category in living:
            time_ns, stack = self._allocated.get(address, (-1, -1))
            rows.append((address, nbytes, core, category, stack, time_ns))
        return _columns(Block._fields, rows)


def _columns(fields: tuple[str, ...], rows: Sequence[tuple[int, ...]]) -> list[array[int]]:
    if not rows:
        return [array("q") for _ in fields]
    return [array("q", column) for column in zip(*rows, strict=True)]


INTERVAL_SECONDS = 1.0


_START = TrainingStep._fields.index("start_ns")
_NEVER = 1 << 62


class ProfileRecorder:
    """Writes the ring's events to a file or a stream once a second, from its own thread, until `finish`.

    An OSError of the writer stops the recording and is stored in `failure`. `living` returns the live storages, `peaks`
    the peak memory of each core.
    """

    def __init__(
        self,
        ring: ProfileRing,
        writer: ProfileEncoder,
        living: Callable[[], Sequence[LiveBlock]],
        peaks: Callable[[], tuple[int, ...]],
    ) -> None:
        self.failure: OSError | None = None
        self.totals = ProfileTotals()
        self._ring = ring
        self._living = living
        self._peaks = peaks
        self._writer = writer
        self._written = [0, 0, 0, 0]
        self._began_ns = _NEVER
        self._ended = Event()
        self._thread = Thread(target=self._run, name="neurontools-profile", daemon=True)

    def start(self, *, is_at_step: bool = True) -> None:
        """Starts recording. `is_at_step` includes the current step; otherwise the profile begins with the next step.

        If the system refuses a thread, events are written when the ring is full and by `finish`.
        """
        self._began_ns = self._ring.start(self, is_at_step=is_at_step)
        try:
            self._thread.start()
        except RuntimeError:
            return

    def take(self, batch: EventBatch) -> None:
        """Writes a batch of events. Runs in the thread that drains the ring."""
        if self.failure is not None:
            return
        # A step that began before the profile is incomplete, so it is dropped.
        steps = batch.tables["steps"]
        first = sum(start_ns < self._began_ns for start_ns in steps[_START])
        batch = replace(batch, tables={**batch.tables, "steps": [column[first:] for column in steps]})
        self.totals.add(batch)
        try:
            self._write(batch)
        except OSError as error:
            self.failure = error

    def finish(self, failure: str | None = None) -> None:
        self._ended.set()
        self._living()  # this frees dead storages while the ring still records, so that events and blocks agree
        self._ring.stop(self)
        if self.failure is None:
            try:
                self._writer.add_rows("blocks", self.totals.blocks(self._living()))
                self._writer.write_state(self._state(has_ended=True, failure=failure))
            except OSError as error:
                self.failure = error

    def abandon(self) -> None:
        """Stops recording without marking the profile as ended."""
        self._ended.set()
        self._ring.stop(self)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS) and self.failure is None:
            if self._ring.is_on:
                self._ring.drain()

    def _write(self, batch: EventBatch) -> None:
        writer, ring, written = self._writer, self._ring, self._written
        new = NewDefinitions(
            ring.names[written[0] :],
            [stack.lines for stack in ring.stack_table.stacks[written[1] :]],
            ring.graphs[written[2] :],
            ring.operators[written[3] :],
        )
        writer.add_definitions(new)
        counts = (len(new.names), len(new.stacks), len(new.graphs), len(new.operators))
        self._written = [before + count for before, count in zip(written, counts, strict=True)]
        for name, columns in {**batch.tables, **self.totals.tables(ring.graphs)}.items():
            if name == "executions":
                writer.add_executions(columns, batch.operator_ns)
            else:
                writer.add_rows(name, columns)
        writer.write_state(self._state(has_ended=False))

    def _state(self, *, has_ended: bool, failure: str | None = None) -> ProfileState:
        return ProfileState(
            ended_ns=time.time_ns(),
            has_ended=has_ended,
            recorded=self.totals.recorded,
            hbm_peak_bytes=self._peaks(),
            failure=failure,
        )


MOST_OPERATORS = 1_000_000
"""The maximum number of operator times in an in-memory profile, which then drops the oldest."""


class InMemoryProfile:
    """A profile in memory, for torch.profiler, torch_xla's start_trace and the memory history."""

    def __init__(
        self,
        ring: ProfileRing,
        metadata: Callable[[], ProfileMetadata],
        living: Callable[[], Sequence[LiveBlock]],
        peaks: Callable[[], tuple[int, ...]],
    ) -> None:
        self._ring = ring
        self._metadata = metadata
        self._living = living
        self._peaks = peaks
        self._totals = ProfileTotals()
        self._batches: deque[EventBatch] = deque()
        self._dropped: dict[str, int] = {}
        self._operators = 0
        self._began_ns = 0

    def start(self) -> None:
        self._began_ns = time.time_ns()
        self._ring.start(self)

    def take(self, batch: EventBatch) -> None:
        """Stores a batch. Drops the oldest batches if there are more than MOST_OPERATORS operator times."""
        self._totals.add(batch)
        self._batches.append(batch)
        self._operators += len(batch.operator_ns)
        while self._operators > MOST_OPERATORS and len(self._batches) > 1:
            gone = self._batches.popleft()
            self._operators -= len(gone.operator_ns)
            for name, columns in gone.tables.items():
                if name != "steps":
                    self._dropped[name] = self._dropped.get(name, 0) + len(columns[0])

    def restart(self) -> None:
        self._ring.drain()
        self._totals = ProfileTotals()
        self._batches.clear()
        self._dropped.clear()
        self._operators = 0
        self._began_ns = time.time_ns()

    def stop(self) -> Profile:
        self._living()  # this frees dead storages while the ring still records, so that events and blocks agree
        self._ring.stop(self)
        return self._profile()

    def read_profile(self) -> Profile:
        """Returns a profile of the events so far, and goes on recording."""
        self._living()  # this frees dead storages while the ring still records, so that events and blocks agree
        self._ring.drain()
        return self._profile()

    def _profile(self) -> Profile:
        ring, totals = self._ring, self._totals
        tables: dict[str, Any] = {kind.field: ColumnTable(kind.row) for kind in TABLES.values()}
        operator_ns = array("q")
        for batch in self._batches:
            operator_ns.extend(batch.operator_ns)
            for name, columns in batch.tables.items():
                tables[name].extend(columns)
        for name, columns in {**totals.tables(ring.graphs), "blocks": totals.blocks(self._living())}.items():
            tables[name].extend(columns)
        return Profile(
            metadata=replace(self._metadata(), began_ns=self._began_ns),
            state=ProfileState(time.time_ns(), True, totals.recorded, self._dropped, self._peaks()),
            names=tuple(ring.names),
            stacks=tuple(stack.lines for stack in ring.stack_table.stacks),
            graphs=tuple(ring.graphs),
            operators=tuple(ring.operators),
            operator_ns=operator_ns,
            **tables,
        )


_DEFAULT_DIRECTORY = "./output"
_DEFAULT_EVENTS = 250_000
_EVENT_BYTES = 32  # maximum size of an event after compression


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    """Settings of a profile. `last_step` is None for a profile without end.

    `run` is the name of the run in TensorBoard, shared by all workers. If empty, each worker generates a name.
    """

    directory: Path
    first_step: int = 1
    last_step: int | None = None
    most_events: int = _DEFAULT_EVENTS
    run: str = ""

    @property
    def most_event_bytes(self) -> int:
        """Maximum size of the events in the profile file, in bytes."""
        return max(self.most_events, 1_000) * _EVENT_BYTES

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProfileConfig | None:
        """Parses environment variables; None if they request no profile. Raises InvalidProfileSteps for wrong steps."""
        if environment.get(INSPECT_ENABLE, "").lower() not in ("1", "true"):
            return None
        first, last = parse_profile_steps(environment.get(PROFILE_STEPS, ""))
        most = environment.get(INSPECT_MOST_EVENTS, "")
        return cls(
            Path(environment.get(INSPECT_OUTPUT_DIRECTORY) or _DEFAULT_DIRECTORY).absolute(),
            first,
            last,
            int(most) if most.isdigit() and most.isascii() and 0 < int(most) < 10**9 else _DEFAULT_EVENTS,
            environment.get(PROFILE_RUN, ""),
        )
