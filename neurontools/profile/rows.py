"""The rows of a profile's tables: whole numbers, so that a table is a few arrays. -1 stands for what is not known.

Numbers of graphs, operators, stacks and names are positions in the lists of `Profile`. Times are in nanoseconds, as
`Metadata` says; `core` is a number on the host, -1 for the host itself. `step` is a number of `Step`.
"""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
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


class Execution(NamedTuple):
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
