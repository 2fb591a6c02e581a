"""Replays the trace of an earlier step instead of recording the step again.

After each execution, the replayer expects the graph that followed the same program last time. Without a trace of that
graph, the replayer observes the calls while the recorder records them, and makes a Trace of them. With a trace, the
replayer compares each call with the trace, and the pending graph of the core stays empty. On a different call, or when
other code needs the graph, the replayer bails out: it writes the graph as if the calls so far had been recorded, and
recording continues.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from neurontools.runtime.capture.trace import ExpectedCall, NotTraceable, ObservedCall, Trace, observe_call
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.operator import DeviceOperator, OperatorSignature, signatures
from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.buffers import Buffer, Core, Graph, Tensor, buffers
from neurontools.runtime.tensors.device import device

MAX_TRACES = 32
_MAX_BACKOFF_EXPONENT = 6
_MIN_CALLS = 4


class TraceCacheEntry:
    __slots__ = ("after", "is_traceable", "trace")

    def __init__(self) -> None:
        self.after: TraceCacheEntry | None = None
        self.trace: Trace | None = None
        self.is_traceable = True


class TraceReplayer:
    """The state of the replay in this process. Callers hold the lock of the buffers.

    `ahead` is the next expected call, or None without a replay. `observed` lists the recorded calls of the present step
    if a trace will be made from them, otherwise it is None.
    """

    __slots__ = ("_buffer_count", "_entries", "_last", "_observed_core", "ahead", "observed", "trace")

    def __init__(self) -> None:
        self.ahead: ExpectedCall | None = None
        self.observed: list[ObservedCall] | None = None
        self.trace: Trace | None = None
        self._observed_core: Core | None = None
        self._buffer_count = 0
        self._last: dict[int, TraceCacheEntry] = {}
        self._entries: deque[TraceCacheEntry] = deque()

    def bind(self, trace: Trace, number: int, address: int) -> bool:
        """Binds the storage at an address to input `number` of a trace. Returns False if the storage does not match."""
        buffer = buffers.by_address.get(address)
        if buffer is None or buffer.layout is not trace.layouts[number] or buffer.value is None:
            return False
        if buffer.core is not trace.core or buffer.graph is not None:
            return False
        self._add_buffer(trace, number, buffer)
        return True

    def output(self, trace: Trace, number: int) -> Tensor:
        """Creates the tensor for a replayed call's result, if the result is still alive at the end of the step."""
        tensor, buffer = buffers.create(trace.layouts[number], None, trace.core)
        self._add_buffer(trace, number, buffer)
        return tensor

    def _add_buffer(self, trace: Trace, number: int, buffer: Buffer) -> None:
        buffer.index = number
        trace.addresses[number] = buffer.address
        trace.buffers[number] = buffer
        buffer.graph = trace.core.pending  # last: a bail-out detaches only buffers that the trace lists

    def observe(
        self,
        core: Core,
        operator: DeviceOperator,
        signature: OperatorSignature,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """Appends a recorded call to `observed`. Stops observing if a replay couldn't recognize the call."""
        observed, graph = self.observed, core.pending
        if observed is None or core is not self._observed_core:
            return
        first_result = len(graph.buffers) - signature.result_count
        indices = graph.key[len(graph.key) - signature.tensor_count :]
        try:
            observed.append(
                observe_call(operator, signature, arguments, keywords, indices, self._buffer_count, first_result)
            )
        except NotTraceable:
            self.observed = None
        self._buffer_count = len(graph.buffers)

    def is_replaying(self, core: Core) -> bool:
        """Returns whether a replay is running on this core and has replayed at least one call."""
        trace, ahead = self.trace, self.ahead
        return trace is not None and trace.core is core and ahead is not None and ahead.position > 0

    def calls_so_far(self, core: Core) -> list[OperatorSignature]:
        """Returns the recorded or replayed calls on a core that are not executed yet. Does not end a replay."""
        trace, ahead = self.trace, self.ahead
        if trace is not None and trace.core is core and ahead is not None:
            return trace.signatures[: ahead.position]
        return core.pending.signatures

    def bail_out(self) -> None:
        """Stops the replay and writes the graph of the replayed calls, as if they had been recorded."""
        with buffers.lock:
            if self.trace is not None and self.ahead is not None:
                self._write_graph(self.trace, self.ahead.position)

    def _write_graph(self, trace: Trace, position: int) -> None:
        core, graph, count = trace.core, trace.core.pending, trace.buffer_counts[position]
        for buffer in trace.buffers[count:]:
            if buffer is not None:  # the call that added this buffer did not complete
                buffer.graph = None
        listed = [
            self._make_temporary(trace, number) if buffer is None else buffer
            for number, buffer in enumerate(trace.buffers[:count])
        ]
        graph.key[:] = trace.key[: trace.key_ends[position]]
        graph.signatures[:] = trace.signatures[:position]
        graph.scalars[:] = trace.scalars[: trace.scalar_counts[position]]
        graph.buffers[:] = listed
        self.ahead = self.trace = None
        core.bail_out = None
        if position:
            trace.misses += 1
            trace.skips = 1 << min(trace.misses, _MAX_BACKOFF_EXPONENT)
            trace.release_slots()

    def _make_temporary(self, trace: Trace, number: int) -> Buffer:
        """Creates the buffer of a temporary result when a replay ends early. A whole replay needs no such buffers."""
        buffer = Buffer()
        buffer.slot, buffer.address = trace.slots[number], trace.addresses[number]
        buffer.layout, buffer.core = trace.layouts[number], trace.core
        buffer.graph, buffer.index = trace.core.pending, number
        buffers.add_replayed(buffer)
        return buffer

    def pop_finished_trace(self, core: Core) -> Trace | None:
        """Returns the trace if all its calls were replayed and the same tensors are alive. Bails out if not."""
        trace = self.trace
        if trace is None or trace.core is not core or self.ahead is trace.first:
            return None
        if self.ahead is not trace.end or not trace.has_same_liveness():
            self.bail_out()
            return None
        self.ahead = self.trace = None
        core.bail_out = None
        trace.misses = max(0, trace.misses - 1)
        metrics.increment("FollowedGraph")
        return trace

    def pop_observed_calls(self, core: Core) -> list[ObservedCall] | None:
        """Stops observing a core and returns the observed calls. Returns None if this core was not observed."""
        if core is not self._observed_core:
            return None
        observed, self.observed, self._observed_core = self.observed, None, None
        return [] if observed is None else observed

    def stop_observing(self) -> None:
        """Bails out and drops the observed calls. A failed call is missing from them."""
        self.bail_out()
        self.observed = self._observed_core = None

    def cache_trace(
        self, core: Core, observed: list[ObservedCall], graph: Graph, alive: bytes, entry: TraceCacheEntry, program: Any
    ) -> None:
        """Makes a trace from the observed calls of an executed graph, and stores it in the program's entry."""
        if len(observed) != len(graph.signatures):
            entry.is_traceable = False  # observing stopped at a call that a replay could not recognize
        elif len(observed) >= _MIN_CALLS:
            self.drop_trace(entry)
            entry.trace = Trace(core, observed, graph.key, graph.buffers, alive, program, self.output, self)
            if entry not in self._entries:
                self._entries.append(entry)
            if len(self._entries) > MAX_TRACES:
                self.drop_trace(self._entries.popleft())

    def expect_next(self, core: Core, entry: TraceCacheEntry) -> None:
        """Starts a replay after a program was executed: of the trace of the program that followed it last time.

        If that program has no trace, starts to observe the calls from which a trace is made.
        """
        last = self._last.get(core.local_index)
        if last is not None:
            last.after = entry
        self._last[core.local_index] = entry
        after = entry.after
        if after is None or device.eager or self.trace is not None:
            return
        trace = after.trace
        if trace is None:
            if after.is_traceable:
                self.observed, self._observed_core, self._buffer_count = [], core, 0
        elif trace.core is core and len(trace.signatures) < device.pending_bound:
            if trace.skips:
                trace.skips -= 1
                return
            trace.prepare()
            self.trace = trace
            self.ahead = trace.first
            core.bail_out = self.bail_out

    def drop_trace(self, entry: TraceCacheEntry) -> None:
        """Drops the trace of an entry. Bails out first if the trace is being replayed."""
        trace, entry.trace = entry.trace, None
        if trace is not None:
            if trace is self.trace:
                self.bail_out()
            trace.release_slots()

    def drop_all_traces(self) -> None:
        """Drops all traces and observed calls, because operators behave differently from now on."""
        self.bail_out()
        self.observed = None
        while self._entries:
            self.drop_trace(self._entries.popleft())


replayer = TraceReplayer()
buffers.write_graphs = replayer.bail_out


def mark_eager_only(operator: DeviceOperator) -> None:
    """Makes an operator run eagerly from now on, because its meta kernel and CPU kernel disagree. Warns once."""
    if not operator.dynamic:
        operator.dynamic = True
        metrics.increment(f"WrongMetaKernel:{operator.name}")
    signatures.clear()
    replayer.drop_all_traces()
    warn_once(
        operator.name,
        f"{operator.name}: its meta kernel announces other results than its CPU kernel returns; it runs on the host, "
        "outside of graphs, and is counted in torch_xla.debug.metrics",
    )
