"""The profile of one worker, and its tables.

A row is a tuple of integers, so a table is one array per column; -1 means unknown. Numbers of graphs, operators, stacks
and names are indices into the lists of `Profile`. Times are in nanoseconds (`ProfileMetadata`). `core` is a host-wide
index, -1 for the host itself. `step` is the number of a `TrainingStep`.
"""

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
    """A sequence of rows, stored as one array of 64-bit integers per column; a row is a NamedTuple of integers.

    Iterating over 100,000 rows takes about 50 ms; iterating over one column takes a tenth of that.
    """

    def __init__(self, kind: type[Row], columns: Sequence[array[int]] | None = None) -> None:
        self.kind = kind
        self.columns = [array("q") for _ in kind._fields] if columns is None else list(columns)

    @classmethod
    def from_rows(cls, kind: type[Row], rows: Iterable[Row]) -> ColumnTable[Row]:
        listed = list(rows)
        if not listed:
            return cls(kind)
        return cls(kind, [array("q", column) for column in zip(*listed, strict=True)])

    def column(self, name: str) -> array[int]:
        """Returns the column of a field, without a copy."""
        return self.columns[self.kind._fields.index(name)]

    def extend(self, columns: Sequence[array[int]]) -> None:
        """Appends rows, given as columns of equal length."""
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
    """A training step, from the previous step (or the profile's start) to the mark_step after an optimizer step.

    The runtime's step clock measures the parts. `collective_ns` is the time that collectives wait for other ranks.
    `compute_ns` is the time of executions without this wait.
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
        return self.end_ns - self.start_ns

    @property
    def host_ns(self) -> int:
        """The time outside all measured parts: Python, tracing and everything else."""
        parts = self.compile_ns + self.input_wait_ns + self.transfer_ns + self.compute_ns + self.collective_ns
        return max(0, self.duration_ns - parts)


class GraphExecution(NamedTuple):
    """An execution of a graph on a core.

    The launch began at `queued_ns`. `reason` is the index of a name: the cause, such as MarkStep. `correlation` numbers
    the executions of the process. `operator_count` is the number of operators with a recorded time: all of the graph's
    operators, or 0.
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
    """A timed event other than an execution; `kind` is a `SpanKind`, and `name` is the index of its name."""

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
    """The HBM in use on a core at one time, in bytes by category."""

    time_ns: int
    core: int
    constants: int
    model_code: int
    shared_scratchpad: int
    runtime: int
    tensors: int

    @property
    def total_bytes(self) -> int:
        return self.constants + self.model_code + self.shared_scratchpad + self.runtime + self.tensors


class Allocation(NamedTuple):
    """The allocation or release of a storage: `action` is ALLOCATED or FREED, `category` an index of CATEGORIES."""

    time_ns: int
    action: int
    core: int
    address: int
    bytes: int
    category: int
    stack: int


class Block(NamedTuple):
    """A storage that was live when the profile ended; `time_ns` is its allocation time, -1 if before the profile."""

    address: int
    bytes: int
    core: int
    category: int
    stack: int
    time_ns: int


class GraphTotal(NamedTuple):
    """The number and time of all executions of a graph, including those with dropped events."""

    graph: int
    executions: int
    failures: int
    total_ns: int


class OperatorTotal(NamedTuple):
    """The time of all executions of an operator. The `GraphTotal` of its graph has the number of executions."""

    operator: int
    total_ns: int
    longest_ns: int


class SpanTotal(NamedTuple):
    """The number, time and bytes of all spans of one kind and name."""

    kind: int
    name: int
    spans: int
    total_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """A timed event. A value is None if it is unknown, or if this kind of event has no such value.

    `core` is a host-wide index, None for the host itself. The launch, the execution and its operators share one
    `correlation`. `graph` and `operator` are indices into the lists of the profile.
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
        """The line of the script (see `script_line`); None without a stack."""
        return script_line(self.stack)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one worker.

    `steps` and the totals cover the whole profile. `executions`, `spans`, `memory_levels` and `allocations` have only
    the latest rows, ordered by end time; `state.dropped` counts the dropped rows. `operator_ns` has the times of the
    operators of all `executions`, one after the other. A stack lists source lines, innermost first, without lines of
    torch, the standard library and this package. `blocks` are the storages at the end, empty if the worker died.
    `is_damaged` is true if the file has a bad chunk; the profile then lacks all data from there on.
    `owner` is the user whose file it is; None if that is the user who reads it.
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
    owner: str | None = None

    def stack(self, number: int | None) -> tuple[SourceLine, ...]:
        """Returns a stack by its index; empty for None and -1."""
        return () if number is None or number < 0 else self.stacks[number]

    def reason(self, execution: GraphExecution) -> str:
        """Returns the cause of an execution, such as MarkStep."""
        return self.names[execution.reason]

    def events(self) -> Iterator[ProfileEvent]:
        """Yields all events: steps, then executions with their launches and operators, then spans."""
        yield from self.step_events()
        yield from self.execution_events()
        yield from self.span_events()

    def step_events(self) -> Iterator[ProfileEvent]:
        for row in self.steps:
            yield ProfileEvent(
                SpanKind.STEP, f"step {row.step}", row.start_ns, row.end_ns, step=row.step, flops=row.flops
            )

    def execution_events(self) -> Iterator[ProfileEvent]:
        """Yields the launch, the execution and the operators of each execution."""
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
            start = row.start_ns
            first = end - row.operator_count
            for number, duration_ns in enumerate(self.operator_ns[first:end], graph.first_operator):
                operator = self.operators[number]
                yield ProfileEvent(
                    SpanKind.COLLECTIVE if operator.engine is Engine.COLLECTIVES else SpanKind.OPERATOR,
                    operator.name,
                    start,
                    start + duration_ns,
                    row.core,
                    operator.engine,
                    flops=operator.flops,
                    bytes=operator.bytes,
                    stack=self.stack(operator.stack),
                    operator=number,
                    scope=operator.scope,
                    **common,
                )
                start += duration_ns

    def span_events(self) -> Iterator[ProfileEvent]:
        """Yields transfers, compilations, input waits, collectives outside graphs, and annotations."""
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
