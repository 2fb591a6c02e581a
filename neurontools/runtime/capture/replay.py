"""Following a step that came before instead of recording it anew; what is a surprise goes back to recording.

After a graph was executed that is known, the one that came after it the last time is expected again. The first time its
calls are observed while they are recorded, and become a Trace; from then on they are compared with it, one by one. The
graph of the core stays empty meanwhile: who asks for it, or does something else than expected, makes it be written down
as if it had been recorded, and recording goes on from there.
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

_MAX_TRACES = 32
_MAX_BACKOFF_EXPONENT = 6
_MIN_CALLS = 4


class TraceCacheEntry:
    """What is known of a program for following: its trace, and the entry of the program that ran after it."""

    __slots__ = ("after", "is_traceable", "trace")

    def __init__(self) -> None:
        self.after: TraceCacheEntry | None = None
        self.trace: Trace | None = None
        self.is_traceable = True


class TraceReplayer:
    """Where the process stands in a step that came before. Everything happens under the lock of the buffers.

    `ahead` is the call that is expected next, None when none is. `observed` are the calls of a step that will be
    followed later, None when nobody watches.
    """

    __slots__ = ("_entries", "_known_count", "_last", "_observed_core", "ahead", "observed", "trace")

    def __init__(self) -> None:
        self.ahead: ExpectedCall | None = None
        self.observed: list[ObservedCall] | None = None
        self.trace: Trace | None = None
        self._observed_core: Core | None = None
        self._known_count = 0
        self._last: dict[int, TraceCacheEntry] = {}
        self._entries: deque[TraceCacheEntry] = deque()

    def bind(self, trace: Trace, number: int, address: int) -> bool:
        """Takes the storage at an address as an input of the graph, if it is one that can be this input."""
        buffer = buffers.by_address.get(address)
        core = trace.core
        if (
            buffer is None
            or buffer.layout is not trace.layouts[number]
            or buffer.value is None
            or buffer.core is not core
            or buffer.graph is not None
        ):
            return False
        buffer.index = number
        trace.addresses[number] = address
        trace.buffers[number] = buffer
        buffer.graph = core.pending  # last: whoever writes the graph looks for it among the trace's buffers
        return True

    def output(self, trace: Trace, number: int) -> Tensor:
        """A result that somebody will have when the step ends."""
        core = trace.core
        tensor, buffer = buffers.create(trace.layouts[number], None, core)
        buffer.index = number
        trace.addresses[number] = buffer.address
        trace.buffers[number] = buffer
        buffer.graph = core.pending
        return tensor

    def observe(
        self,
        core: Core,
        operator: DeviceOperator,
        signature: OperatorSignature,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """After a call was recorded: takes it down, unless it is one that can't be compared."""
        observed = self.observed
        graph = core.pending
        if observed is None or core is not self._observed_core:
            return
        count = signature.tensor_count
        first_result = len(graph.buffers) - signature.result_count
        indices = graph.key[len(graph.key) - count :]
        try:
            observed.append(
                observe_call(operator, signature, arguments, keywords, indices, self._known_count, first_result)
            )
        except NotTraceable:
            self.observed = None
        self._known_count = len(graph.buffers)

    def is_replaying(self, core: Core) -> bool:
        """Whether a part of a step has been followed on a core."""
        trace, ahead = self.trace, self.ahead
        return trace is not None and trace.core is core and ahead is not None and ahead.position > 0

    def bail_out(self) -> None:
        """Writes the graph of what came so far, as if it had been recorded; nothing is expected any more."""
        with buffers.lock:
            if self.trace is not None and self.ahead is not None:
                self._write_graph(self.trace, self.ahead.position)

    def _write_graph(self, trace: Trace, position: int) -> None:
        core, graph, count = trace.core, trace.core.pending, trace.buffer_counts[position]
        for buffer in trace.buffers[count:]:
            if buffer is not None:  # of a call that was not made to its end
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
        """The buffer of a result for which there was none."""
        buffer = Buffer()
        buffer.slot, buffer.address = trace.slots[number], trace.addresses[number]
        buffer.layout, buffer.core = trace.layouts[number], trace.core
        buffer.graph, buffer.index = trace.core.pending, number
        buffers.know(buffer)
        return buffer

    def take_finished_trace(self, core: Core) -> Trace | None:
        """The trace that came again to its end, with all that lives then; None for anything else."""
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

    def take_observed_calls(self, core: Core) -> list[ObservedCall] | None:
        """What was observed of the graph of a core, which ends here; None where nobody watched."""
        if core is not self._observed_core:
            return None
        observed, self.observed, self._observed_core = self.observed, None, None
        return [] if observed is None else observed

    def stop_observing(self) -> None:
        """A call was not recorded to its end: what was observed is no whole graph."""
        self.bail_out()
        self.observed = self._observed_core = None

    def keep_trace(
        self, core: Core, observed: list[ObservedCall], graph: Graph, alive: bytes, entry: TraceCacheEntry, program: Any
    ) -> None:
        """Keeps what was observed of a graph that has come again, to follow it."""
        if len(observed) != len(graph.signatures):
            entry.is_traceable = False  # some call was none that can be compared
        elif len(observed) >= _MIN_CALLS:
            self.drop_trace(entry)
            entry.trace = Trace(core, observed, graph.key, graph.buffers, alive, program, self.output, self)
            if entry not in self._entries:
                self._entries.append(entry)
            if len(self._entries) > _MAX_TRACES:
                self.drop_trace(self._entries.popleft())

    def expect_next(self, core: Core, entry: TraceCacheEntry) -> None:
        """After a program was executed: expects what came after it the last time."""
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
                self.observed, self._observed_core, self._known_count = [], core, 0
        elif trace.core is core and len(trace.signatures) < device.pending_bound:
            if trace.skips:
                trace.skips -= 1
                return
            trace.prepare()
            self.trace = trace
            self.ahead = trace.first
            core.bail_out = self.bail_out

    def drop_trace(self, entry: TraceCacheEntry) -> None:
        """The program of a entry is not there any more, or its calls do something else now."""
        trace, entry.trace = entry.trace, None
        if trace is not None:
            if trace is self.trace:
                self.bail_out()
            trace.release_slots()

    def drop_all_traces(self) -> None:
        """What calls do has changed: nothing that was observed before holds any more."""
        self.bail_out()
        self.observed = None
        while self._entries:
            self.drop_trace(self._entries.popleft())


replayer = TraceReplayer()
buffers.write_graphs = replayer.bail_out


def mark_eager_only(operator: DeviceOperator) -> None:
    """From here on the operator runs at once: its meta kernel announced what the CPU does not return."""
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
