"""Hooks in any order and from several threads, compared with a plain model of what they mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from neurontools.model import DeviceMemory, HostMemory
from neurontools.model.latency import bucket_index
from neurontools.runtime import ErrorKind, LoadedModel, Outcome
from neurontools.runtime.reporting.accounts import Accounts, Started
from neurontools.runtime.reporting.journal import Journal
from tests.harness.examples import examples

CORES = 3
UNIX = 1e6
cores = st.integers(0, CORES - 1)
threads = st.integers(0, 2)
sizes = st.integers(0, 2**40)


@dataclass
class Expected:
    """One core as the model has it; executions as [start, end], the end None while in flight."""

    executions: list[list[float | None]] = field(default_factory=list)
    flop: int = 0
    tensors_bytes: int = 0

    def busy_seconds(self, now: float) -> float:
        spans = sorted((start or 0.0, now if end is None else end) for start, end in self.executions)
        total, covered = 0.0, -math.inf
        for start, end in spans:
            total += max(0.0, end - max(start, covered))
            covered = max(covered, end)
        return total


class Hooks(RuleBasedStateMachine):
    """Every hook of the training side against `Expected`."""

    models: Bundle[tuple[LoadedModel, int, int]] = Bundle("models")
    in_flight: Bundle[tuple[LoadedModel, Started, list[float | None]]] = Bundle("in_flight")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.journal = Journal()
        self.accounts = Accounts(CORES)
        self.pools = [ThreadPoolExecutor(1) for _ in range(3)]
        self.expected = [Expected() for _ in range(CORES)]
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.device_latencies: Counter[int] = Counter()
        self.total_latencies: Counter[int] = Counter()
        self.loaded: dict[LoadedModel, tuple[int, int]] = {}

    def on(self, thread: int, call: Callable[[], object]) -> None:
        """Calls in one of the threads, and sees to it that nothing is raised there."""
        self.pools[thread].submit(call).result()

    def teardown(self) -> None:
        for pool in self.pools:
            pool.shutdown()

    @rule(seconds=st.floats(0.001, 50))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=models, core=cores, size=sizes)
    def load(self, core: int, size: int) -> tuple[LoadedModel, int, int]:
        model = LoadedModel("model", self.journal, self.accounts, lambda: self.now)
        memory = {core: DeviceMemory(constants_bytes=size)}
        self.journal.note(self.accounts.load, model, "model", None, memory, HostMemory())
        self.loaded[model] = (core, size)
        return model, core, size

    @rule(thread=threads, model=consumes(models))
    def unload(self, thread: int, model: tuple[LoadedModel, int, int]) -> None:
        self.on(thread, lambda: self.journal.note(self.accounts.unload, model[0]))
        del self.loaded[model[0]]

    @rule(target=in_flight, thread=threads, model=models, core=cores)
    def begin(
        self, thread: int, model: tuple[LoadedModel, int, int], core: int
    ) -> tuple[LoadedModel, Started, list[float | None]]:
        handle = model[0]
        started = self.pools[thread].submit(handle.begin, core).result()
        execution: list[float | None] = [self.now, None]
        self.expected[core].executions.append(execution)
        return handle, started, execution

    @rule(
        thread=threads,
        running=consumes(in_flight),
        flop=st.integers(0, 10**15),
        outcome=st.sampled_from(Outcome),
        queued=st.floats(0, 10),
    )
    def end(
        self,
        thread: int,
        running: tuple[LoadedModel, Started, list[float | None]],
        flop: int,
        outcome: Outcome,
        queued: float,
    ) -> None:
        model, started, execution = running
        self.on(thread, lambda: model.end(started, flop, outcome, queued))
        self.on(thread, lambda: model.end(started, flop, outcome, queued))  # a second end is ignored
        execution[1] = self.now
        self.expected[started[1]].flop += flop
        self.outcomes[f"{outcome}_total"] += 1
        if outcome.startswith("completed"):
            seconds = self.now - (execution[0] or 0.0)
            self.device_latencies[bucket_index(seconds)] += 1
            self.total_latencies[bucket_index(seconds + queued)] += 1

    @rule(thread=threads, core=cores, size=sizes)
    def add_memory(self, thread: int, core: int, size: int) -> None:
        self.on(thread, lambda: self.journal.note(self.accounts.add_memory, core, "tensors_bytes", size))
        self.expected[core].tensors_bytes += size

    @rule(thread=threads, core=cores, size=sizes)
    def set_memory(self, thread: int, core: int, size: int) -> None:
        self.on(thread, lambda: self.journal.note(self.accounts.set_memory, core, "tensors_bytes", size))
        self.expected[core].tensors_bytes = size

    @rule(thread=threads, core=st.sampled_from([-1, CORES, 10**6]))
    def wrong_core(self, thread: int, core: int) -> None:
        self.on(thread, lambda: self.journal.note(self.accounts.add_memory, core, "tensors_bytes", 1))

    @rule(thread=threads, kind=st.sampled_from(ErrorKind))
    def error(self, thread: int, kind: ErrorKind) -> None:
        self.on(thread, lambda: self.journal.note(self.accounts.add_error, kind))
        self.errors[f"{kind}_total"] += 1

    @invariant()
    def report_is_what_happened(self) -> None:
        with self.journal.settled():
            report = self.accounts.report(CORES, self.now, UNIX)
        for index, (core, expected) in enumerate(zip(report.cores, self.expected, strict=True)):
            assert math.isclose(core.busy_seconds_total, expected.busy_seconds(self.now), abs_tol=1e-6)
            assert core.flop_total == expected.flop
            assert core.executions_total == sum(end is not None for _, end in expected.executions)
            assert core.memory.tensors_bytes == expected.tensors_bytes
            models_bytes = sum(size for core, size in self.loaded.values() if core == index)
            assert core.memory.constants_bytes == models_bytes
            oldest = min((start or 0.0 for start, end in expected.executions if end is None), default=None)
            assert core.HasField("execution_started_at_unix_seconds") == (oldest is not None)
            if oldest is not None:
                assert core.execution_started_at_unix_seconds == oldest + UNIX
        counters = {field.name: value for field, value in report.executions.ListFields()}
        assert counters == dict(self.outcomes)
        assert {field.name: value for field, value in report.errors.ListFields()} == dict(self.errors)
        for histogram, counts in (
            (report.device_latency_histogram, self.device_latencies),
            (report.total_latency_histogram, self.total_latencies),
        ):
            assert list(zip(histogram.bucket_indices, histogram.bucket_counts, strict=True)) == sorted(counts.items())
        assert len({model.model_id for model in report.models}) == len(self.loaded)


TestHooks = Hooks.TestCase
TestHooks.settings = settings(max_examples=examples(60), stateful_step_count=40)
