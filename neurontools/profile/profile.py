"""The profile of one worker, as a value."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar, overload

from neurontools.profile.definitions import (
    Engine,
    GraphDefinition,
    OperatorDefinition,
    ProfileMetadata,
    ProfileState,
    SourceLine,
    SpanKind,
    script_line,
)

Row = TypeVar("Row", bound=NamedTuple)


class ColumnTable(Sequence[Row], Generic[Row]):
    """Rows of one kind, a NamedTuple of whole numbers, each column an array of 64-bit numbers.

    Iterating over 100,000 rows takes some 50 ms, over a column a tenth of that.
    """

    def __init__(self, kind: type[Row], columns: Sequence[array[int]] | None = None) -> None:
        self.kind = kind
        self.columns = [array("q") for _ in kind._fields] if columns is None else list(columns)

    @classmethod
    def of(cls, kind: type[Row], rows: Iterable[Row]) -> ColumnTable[Row]:
        """A table of these rows."""
        listed = list(rows)
        if not listed:
            return cls(kind)
        return cls(kind, [array("q", column) for column in zip(*listed, strict=True)])

    def column(self, name: str) -> array[int]:
        """One column, by the name of its field; the table's own."""
        return self.columns[self.kind._fields.index(name)]

    def extend(self, columns: Sequence[array[int]]) -> None:
        """Adds rows, by columns of one length."""
        for own, more in zip(self.columns, columns, strict=True):
            own.extend(more)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        make = self.kind._make
        return map(make, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnTable[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | ColumnTable[Row]:
        if isinstance(index, slice):
            return ColumnTable(self.kind, [column[index] for column in self.columns])
        return self.kind._make(column[index] for column in self.columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnTable):
            return NotImplemented
        return self.kind is other.kind and self.columns == other.columns

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Table({self.kind.__name__}, {len(self)} rows)"


class TrainingStep(NamedTuple):
    """A training step: what the optimizer's steps, and the mark_step after each, divide the run into.

    What its time went to, as the runtime's step clock charges it; the rest is the host's: Python, tracing, everything
    else. `collective_ns` is the wait for the other ranks, and `compute_ns` has what collectives took besides. The first
    step of a run has all the time since the profile began.
    """

    step: int
    start_ns: int
    end_ns: int
    compile_ns: int
    input_wait_ns: int
    transfer_ns: int
    compute_ns: int
    collective_ns: int
    executions: int
    flops: int

    @property
    def duration_ns(self) -> int:
        """All its time."""
        return self.end_ns - self.start_ns

    @property
    def host_ns(self) -> int:
        """The time that none of its parts took."""
        parts = self.compile_ns + self.input_wait_ns + self.transfer_ns + self.compute_ns + self.collective_ns
        return max(0, self.duration_ns - parts)


class GraphExecution(NamedTuple):
    """An execution of a graph on a core.

    The host began to hand it over at `queued_ns`; `reason` is the name of why it was executed, such as MarkStep.
    `correlation` is its number in the process. `operator_count` is how many operators of it were timed: all, or none.
    """

    graph: int
    core: int
    step: int
    correlation: int
    reason: int
    queued_ns: int
    start_ns: int
    end_ns: int
    operator_count: int


class Span(NamedTuple):
    """Something else that took time; `kind` is a `Kind`, `name` the number of its name."""

    kind: int
    name: int
    core: int
    step: int
    start_ns: int
    end_ns: int
    bytes: int
    correlation: int
    stack: int


class MemoryLevels(NamedTuple):
    """The HBM of a core at a time, bytes by category."""

    time_ns: int
    core: int
    constants: int
    model_code: int
    shared_scratchpad: int
    runtime: int
    tensors: int

    @property
    def total_bytes(self) -> int:
        """All categories."""
        return self.constants + self.model_code + self.shared_scratchpad + self.runtime + self.tensors


class Allocation(NamedTuple):
    """A storage that was allocated or freed: `action` is ALLOCATED or FREED, `category` a number of CATEGORIES."""

    time_ns: int
    action: int
    core: int
    address: int
    bytes: int
    category: int
    stack: int


class Block(NamedTuple):
    """A storage that was there when the profile ended; `time_ns` is when it was allocated, -1 before the profile."""

    address: int
    bytes: int
    core: int
    category: int
    stack: int
    time_ns: int


class GraphTotal(NamedTuple):
    """All executions of a graph, those too whose events were dropped."""

    graph: int
    executions: int
    failures: int
    total_ns: int


class OperatorTotal(NamedTuple):
    """All executions of an operator; how many is its graph's."""

    operator: int
    total_ns: int
    longest_ns: int


class SpanTotal(NamedTuple):
    """All spans of a kind and name."""

    kind: int
    name: int
    spans: int
    total_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """Something that took time. None is unknown, or is nothing that such an event has.

    `core` is a number on the host, None for the host itself. Events of one execution have its `correlation`: its
    launch, the execution itself and its operators. `graph` and `operator` are numbers of the profile's lists.
    """

    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    core: int | None = None
    engine: Engine | None = None
    step: int | None = None
    flops: int | None = None
    bytes: int | None = None
    stack: tuple[SourceLine, ...] = ()
    graph: int | None = None
    operator: int | None = None
    correlation: int | None = None
    scope: str = ""

    @property
    def place(self) -> SourceLine | None:
        """The line of the script, or what is nearest to it."""
        return script_line(self.stack)

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

    metadata: ProfileMetadata
    state: ProfileState = field(default_factory=ProfileState)
    names: tuple[str, ...] = ()
    stacks: tuple[tuple[SourceLine, ...], ...] = ()
    graphs: tuple[GraphDefinition, ...] = ()
    operators: tuple[OperatorDefinition, ...] = ()
    steps: ColumnTable[TrainingStep] = field(default_factory=lambda: ColumnTable(TrainingStep))
    executions: ColumnTable[GraphExecution] = field(default_factory=lambda: ColumnTable(GraphExecution))
    operator_ns: array[int] = field(default_factory=lambda: array("q"))
    spans: ColumnTable[Span] = field(default_factory=lambda: ColumnTable(Span))
    memory_levels: ColumnTable[MemoryLevels] = field(default_factory=lambda: ColumnTable(MemoryLevels))
    allocations: ColumnTable[Allocation] = field(default_factory=lambda: ColumnTable(Allocation))
    blocks: ColumnTable[Block] = field(default_factory=lambda: ColumnTable(Block))
    graph_totals: ColumnTable[GraphTotal] = field(default_factory=lambda: ColumnTable(GraphTotal))
    operator_totals: ColumnTable[OperatorTotal] = field(default_factory=lambda: ColumnTable(OperatorTotal))
    span_totals: ColumnTable[SpanTotal] = field(default_factory=lambda: ColumnTable(SpanTotal))
    is_damaged: bool = False

    def stack(self, number: int | None) -> tuple[SourceLine, ...]:
        """A stack by its number; empty for None and for -1."""
        return () if number is None or number < 0 else self.stacks[number]

    def reason(self, execution: GraphExecution) -> str:
        """Why it was executed, such as MarkStep."""
        return self.names[execution.reason]

    def events(self) -> Iterator[ProfileEvent]:
        """All events that are there: steps, then executions with their launches and operators, then all others."""
        yield from self.step_events()
        yield from self.execution_events()
        yield from self.span_events()

    def step_events(self) -> Iterator[ProfileEvent]:
        """The steps."""
        for row in self.steps:
            yield ProfileEvent(
                SpanKind.STEP, f"step {row.step}", row.start_ns, row.end_ns, step=row.step, flops=row.flops
            )

    def execution_events(self) -> Iterator[ProfileEvent]:
        """Of each execution: its launch, itself, its operators."""
        ends = accumulate(self.executions.column("operator_count"))
        for row, end in zip(self.executions, ends, strict=True):
            graph = self.graphs[row.graph]
            common: Any = {"step": row.step, "graph": row.graph, "correlation": row.correlation}
            stack = self.stack(graph.stack)
            yield ProfileEvent(SpanKind.LAUNCH, self.reason(row), row.queued_ns, row.start_ns, stack=stack, **common)
            yield ProfileEvent(
                SpanKind.EXECUTION,
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
                yield ProfileEvent(
                    SpanKind.COLLECTIVE if operator.engine is Engine.COLLECTIVES else SpanKind.OPERATOR,
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

    def span_events(self) -> Iterator[ProfileEvent]:
        """Transfers, compilations, waits for input, collectives outside of graphs, and parts of the script."""
        for row in self.spans:
            yield ProfileEvent(
                SpanKind(row.kind),
                self.names[row.name],
                row.start_ns,
                row.end_ns,
                row.core if row.core >= 0 else None,
                step=row.step,
                bytes=row.bytes if row.bytes >= 0 else None,
                stack=self.stack(row.stack),
                correlation=row.correlation if row.correlation >= 0 else None,
            )
