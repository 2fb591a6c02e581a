"""The profile of one worker, as a value."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from neurontools.profile.definitions import Graph, Operator, Place, script_place
from neurontools.profile.kinds import Engine, Kind
from neurontools.profile.metadata import Metadata, State
from neurontools.profile.rows import (
    Allocation,
    Block,
    Execution,
    GraphTotal,
    MemoryLevels,
    OperatorTotal,
    Span,
    SpanTotal,
    Step,
)
from neurontools.profile.table import Table


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. None is unknown, or is nothing that such an event has.

    `core` is a number on the host, None for the host itself. Events of one execution have its `correlation`: its
    launch, the execution itself and its operators. `graph` and `operator` are numbers of the profile's lists.
    """

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    core: int | None = None
    engine: Engine | None = None
    step: int | None = None
    flops: int | None = None
    bytes: int | None = None
    stack: tuple[Place, ...] = ()
    graph: int | None = None
    operator: int | None = None
    correlation: int | None = None
    scope: str = ""

    @property
    def place(self) -> Place | None:
        """The line of the script, or what is nearest to it."""
        return script_place(self.stack)

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Profile:
    """What one worker did while it was profiled.

    `steps` and the totals are of the whole profile. `executions`, `spans`, `memory_levels` and `allocations` are the
    latest, in the order of their ends: a profile is bounded, and `state.dropped` says what it let go of.
    `operator_ns` are the times of the operators of all `executions`, one after the other. A stack is
    places, the innermost first, without those of torch, of the standard library and of this package.
    `blocks` are the storages of the end, empty where the worker died. `is_damaged`: the file ends in the middle of
    something, which is left out.
    """

    metadata: Metadata
    state: State = field(default_factory=State)
    names: tuple[str, ...] = ()
    stacks: tuple[tuple[Place, ...], ...] = ()
    graphs: tuple[Graph, ...] = ()
    operators: tuple[Operator, ...] = ()
    steps: Table[Step] = field(default_factory=lambda: Table(Step))
    executions: Table[Execution] = field(default_factory=lambda: Table(Execution))
    operator_ns: array[int] = field(default_factory=lambda: array("q"))
    spans: Table[Span] = field(default_factory=lambda: Table(Span))
    memory_levels: Table[MemoryLevels] = field(default_factory=lambda: Table(MemoryLevels))
    allocations: Table[Allocation] = field(default_factory=lambda: Table(Allocation))
    blocks: Table[Block] = field(default_factory=lambda: Table(Block))
    graph_totals: Table[GraphTotal] = field(default_factory=lambda: Table(GraphTotal))
    operator_totals: Table[OperatorTotal] = field(default_factory=lambda: Table(OperatorTotal))
    span_totals: Table[SpanTotal] = field(default_factory=lambda: Table(SpanTotal))
    is_damaged: bool = False

    def stack(self, number: int | None) -> tuple[Place, ...]:
        """A stack by its number; empty for None and for -1."""
        return () if number is None or number < 0 else self.stacks[number]

    def reason(self, execution: Execution) -> str:
        """Why it was executed, such as MarkStep."""
        return self.names[execution.reason]

    def events(self) -> Iterator[Event]:
        """All events that are there: steps, then executions with their launches and operators, then all others."""
        yield from self.step_events()
        yield from self.execution_events()
        yield from self.span_events()

    def step_events(self) -> Iterator[Event]:
        """The steps."""
        for row in self.steps:
            yield Event(Kind.STEP, f"step {row.step}", row.start_ns, row.end_ns, step=row.step, flops=row.flops)

    def execution_events(self) -> Iterator[Event]:
        """Of each execution: its launch, itself, its operators."""
        ends = accumulate(self.executions.column("operator_count"))
        for row, end in zip(self.executions, ends, strict=True):
            graph = self.graphs[row.graph]
            common: Any = {"step": row.step, "graph": row.graph, "correlation": row.correlation}
            stack = self.stack(graph.stack)
            yield Event(Kind.LAUNCH, self.reason(row), row.queued_ns, row.start_ns, stack=stack, **common)
            yield Event(
                Kind.EXECUTION,
                graph.module,
                row.start_ns,
                row.end_ns,
                row.core,
                flops=graph.flops,
                bytes=graph.moved_bytes,
                stack=stack,
                **common,
            )
            begun = row.start_ns
            first = end - row.operator_count
            for number, took in enumerate(self.operator_ns[first:end], graph.first_operator):
                operator = self.operators[number]
                yield Event(
                    Kind.COLLECTIVE if operator.engine is Engine.COLLECTIVES else Kind.OPERATOR,
                    operator.name,
                    begun,
                    begun + took,
                    row.core,
                    operator.engine,
                    flops=operator.flops,
                    bytes=operator.bytes,
                    stack=self.stack(operator.stack),
                    operator=number,
                    scope=operator.scope,
                    **common,
                )
                begun += took

    def span_events(self) -> Iterator[Event]:
        """Transfers, compilations, waits for input, collectives outside of graphs, and parts of the script."""
        for row in self.spans:
            yield Event(
                Kind(row.kind),
                self.names[row.name],
                row.start_ns,
                row.end_ns,
                row.core if row.core >= 0 else None,
                step=row.step,
                bytes=row.bytes if row.bytes >= 0 else None,
                stack=self.stack(row.stack),
                correlation=row.correlation if row.correlation >= 0 else None,
            )
