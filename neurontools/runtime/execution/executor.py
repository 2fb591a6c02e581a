"""Executes graphs: looks up or compiles their programs, runs them, and reports each execution."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from neurontools.driver.environment import is_shapes_only
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.model import OperatorTime
from neurontools.profile.definitions import WARM_UP_STEPS
from neurontools.runtime.capture.replay import TraceCacheEntry, replayer
from neurontools.runtime.capture.trace import ObservedCall, Trace, operator_counts
from neurontools.runtime.counting.metrics import LATE_GRAPH, call_sites, metrics
from neurontools.runtime.counting.steps import COMPILE, COMPUTE, step_clock, steps
from neurontools.runtime.execution.graph_description import (
    FIRST_GRAPH,
    GraphChanges,
    GraphOrigin,
    cause_stack,
    profiled_graph,
)
from neurontools.runtime.execution.injection import apply_fault
from neurontools.runtime.execution.policy import (
    FAIL_ON_NAN,
    CompilationFailed,
    ExecutionFailed,
    ExecutionPolicy,
    NanCheck,
    check_load,
    deadline,
    nrt_status_of,
)
from neurontools.runtime.execution.shapes_only import NothingToCheck, shapes_only_run
from neurontools.runtime.execution.work import ExecutionWork, OperatorSamples, OperatorTimes, steady_state, work_of
from neurontools.runtime.native.native_program import MachineCode, NativeProgram
from neurontools.runtime.operators.lru_cache import LRUCache
from neurontools.runtime.profiling.ring import TRACED_STEPS, GraphEntry, ring
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler import (
    CC_FLAGS,
    CompilerFlags,
    compile_graph,
    graph_hash,
    graph_text,
    parse_compiler_flags,
)
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program
from neurontools.runtime.reporting.control_channel import ArmedFaults
from neurontools.runtime.tensors.buffers import (
    Buffer,
    Category,
    Core,
    Graph,
    OutOfDeviceMemory,
    Tensor,
    buffers,
    release,
)
from neurontools.runtime.tensors.cores import Monitor
from neurontools.runtime.tensors.storages import storages

DEFAULT_PROGRAMS = 512
RECENT_MODELS = "NEURON_NUM_RECENT_MODELS_TO_KEEP"
_TOUCH_EVERY = 64  # a replayed program refreshes its LRU cache entry once per this many executions


class ExecutionTimes(NamedTuple):
    """Moments of one execution, in seconds of perf_counter: queued, taken from the queue, begun and ended."""

    queued: float
    queued_until: float
    begun: float
    ended: float


class Executor:
    """Executes graphs and holds the loaded programs of all cores.

    Callers hold the lock of the buffers, except where a method says otherwise.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.monitor = Monitor()
        self.faults = ArmedFaults()
        self.cores: list[Core] = []
        self.environment = environment
        recent = environment.get(RECENT_MODELS, "")
        capacity = (int(recent) if recent.isdigit() else 0) or DEFAULT_PROGRAMS
        self.programs: LRUCache[tuple[Any, ...], LoadedProgram] = LRUCache(capacity, self.unload)
        self.extracted: LRUCache[tuple[Any, ...], CompiledGraph] = LRUCache(capacity)
        self.loaded: dict[int, dict[int, LoadedProgram]] = {}
        self._work_unloaded = ExecutionWork()
        self._operator_times = OperatorTimes()
        self.graph_changes = GraphChanges()
        self._late_graph_stack: int | None = None  # the call stack that made the latest graph new, after the warm-up
        self.cache = CompileCache(environment)
        self.machine_code = MachineCode(environment, self.cache)
        self._flags_text: str | None = None
        self._flags = CompilerFlags()

    @cached_property
    def policy(self) -> ExecutionPolicy:
        """The execution settings. Reads the environment at first use, because scripts set variables late."""
        return ExecutionPolicy.from_environment(self.environment)

    @property
    def flags(self) -> CompilerFlags:
        """The parsed NEURON_CC_FLAGS. Reads the variable each time, because scripts set it after imports."""
        text = self.environment.get(CC_FLAGS, "")
        if text != self._flags_text:
            self._flags = parse_compiler_flags(text)
            self._flags_text = text
        return self._flags

    def flush(self, core: Core, reason: str) -> None:
        with buffers.lock:
            buffers.drain()
            trace = replayer.pop_finished_trace(core)
            graph = core.pending
            if trace is not None:
                metrics.count_replay(trace.operators)
            elif graph.signatures:
                metrics.count_operators(operator_counts(graph.signatures))
            else:
                return
            metrics.increment(f"Flush:{reason}")
            if ring.is_on:
                ring.reason = ring.number_of(reason)
            listed: Sequence[Buffer | None] = graph.buffers if trace is None else trace.buffers
            try:
                if trace is None:
                    core.pending = Graph()
                    self._execute(core, graph, replayer.pop_observed_calls(core))
                else:
                    self._execute_trace(core, trace)
            except BaseException as error:
                for buffer in listed:
                    if buffer is not None and buffer.value is None:
                        buffer.failure = error
                _forget(listed)
                raise
            if steps.awaits_flush:
                steps.end_flush()
            if ring.is_watching:
                ring.end_flush()

    def _execute(self, core: Core, graph: Graph, observed: list[ObservedCall] | None) -> None:
        """Executes a recorded graph. `observed` has its calls if the replayer observed them, otherwise None."""
        queued = time.perf_counter()
        words = storages.words
        alive = bytes([words[buffer.slot] == buffer.address for buffer in graph.buffers])
        if self.policy.extracts_only:
            self._extract(core, graph, alive)
            return
        loaded = self._program(core, graph, alive)
        is_known = loaded.executions > 0
        if not loaded.program.compiled.instructions:
            _forget(graph.buffers)
            return
        if ring.is_on and loaded.entry is None:
            loaded.entry = profiled_graph(loaded.program, graph, alive, loaded.origin)
        self._run(core, loaded, graph.buffers, graph.scalars, graph.hosts, queued)
        if is_known and observed is not None:
            replayer.cache_trace(core, observed, graph, alive, loaded.cache_entry, loaded)
        replayer.expect_next(core, loaded.cache_entry)

    def _execute_trace(self, core: Core, trace: Trace) -> None:
        loaded: LoadedProgram = trace.program
        metrics.increment("CachedCompile")
        if not loaded.executions % _TOUCH_EVERY:
            self.programs.get((core.local_index, tuple(trace.key), trace.alive))
        self._run(core, loaded, trace.buffers, trace.scalars, (), time.perf_counter())
        replayer.expect_next(core, loaded.cache_entry)

    def _run(
        self,
        core: Core,
        loaded: LoadedProgram,
        listed: Sequence[Buffer | None],
        scalars: Sequence[Any],
        hosts: Sequence[Tensor],
        queued: float,
    ) -> None:
        """Runs a program. `listed` has the buffers of its graph, and None for each temporary value."""
        graph_buffers: Any = listed
        compiled = loaded.program.compiled
        memory = core.memory
        output_bytes = loaded.output_bytes_total
        memory.allocate(Category.TENSORS, output_bytes)
        faulty = (
            apply_fault(loaded.program, core, self.faults, self.policy.timeout_seconds) if self.faults.by_core else None
        )
        entry = loaded.entry if ring.is_on else None
        samples = loaded.samples
        by_operators = loaded.native is None or not loaded.native.is_native
        is_sampled = loaded.executions >= samples.next_at and faulty is None and by_operators and samples.is_due()
        is_timed = is_sampled or entry is not None
        if is_timed:
            loaded.program.prepare_timed()
        queued_until = time.perf_counter()
        inputs: Any = [graph_buffers[number].value for number in compiled.inputs]
        if (timeout_seconds := self.policy.timeout_seconds) is not None:
            deadline.start(timeout_seconds, f"Neuron Device {memory.device_index} NC {core.global_index}")
        started = part = None
        try:
            # The script's default device and other torch modes must not affect the operators of the program.
            with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), torch._C.DisableTorchFunction():
                # The monitor daemon gets the start and the end of each execution. Only a profile has single operators.
                begun = time.perf_counter()
                started = self.monitor.begin(loaded.handle, begun)
                part = step_clock.open(COMPUTE, begun)
                if not is_timed:
                    run = loaded.run if faulty is None else faulty.run
                    outputs = run(inputs, scalars, hosts, core.generator)
                    ended = time.perf_counter()
                else:
                    outputs, times = (faulty or loaded.program).run_timed(inputs, scalars, hosts, core.generator)
                    times = (int(begun * 1e9), *times[1:])
                    ended = times[-1] * 1e-9
                deadline.check()
                bad = loaded.nan_check.finds(
                    outputs, graph_buffers, is_exact=self.policy.fail_on_nan or faulty is not None
                )
        except BaseException as error:
            now = time.perf_counter()
            if part is not None:
                step_clock.close(part, now)
            memory.free(Category.TENSORS, output_bytes)
            self.count_failure(core, started, error, queued_until - queued, now)
            if entry is not None:
                ring.record_failure(entry)
            raise
        finally:
            deadline.clear()
        step_clock.close(part, ended)
        del inputs
        for number, value, nbytes in zip(compiled.outputs, outputs, loaded.output_bytes, strict=True):
            buffer = graph_buffers[number]
            buffer.value = value
            if buffer.category is not Category.TENSORS:
                memory.move(Category.TENSORS, buffer.category, nbytes)
        if is_sampled:
            samples.add_times(times)
        if entry is not None:
            index = core.global_index
            ring.record_memory_levels(index, memory.levels)
            ring.record_output_allocations(entry, index, [graph_buffers[n].address for n in compiled.outputs])
            ring.record_execution(entry, index, loaded.flops, int(queued * 1e9), times)
        _forget(listed)
        steady_state.executed(loaded.work)
        self.count_success(core, loaded, started, ExecutionTimes(queued, queued_until, begun, ended), has_nan=bad)

    def count_failure(
        self, core: Core, started: Any, error: BaseException, queued_seconds: float, at_seconds: float
    ) -> None:
        """Counts an execution that failed at `at_seconds`. `started` is from `monitor.begin`, or None before it."""
        core.statistics.failed_executions_total += 1
        if started is not None:
            self.monitor.end(started, 0, nrt_status_of(error), queued_seconds, at_seconds)

    def count_success(
        self, core: Core, loaded: LoadedProgram, started: Any, times: ExecutionTimes, *, has_nan: bool
    ) -> None:
        """Counts a completed execution and reports its end.

        Raises ExecutionFailed after NaN if NEURON_FAIL_ON_NAN is set.
        """
        loaded.executions += 1
        loaded.samples.seconds += (seconds := times.ended - times.begun)
        statistics = core.statistics
        statistics.executions_total += 1
        statistics.busy_seconds += seconds
        statistics.flops_total += loaded.flops
        statistics.numerical_errors_total += has_nan
        status = NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR if has_nan else NrtStatus.SUCCESS
        queued_seconds = times.queued_until - times.queued
        try:
            self.monitor.end(started, loaded.flops, status, queued_seconds, times.ended)
        except BaseException:  # Ctrl-C, perhaps before the end was recorded; a second record has no effect
            self.monitor.end(started, loaded.flops, status, queued_seconds, times.ended)
            raise
        metrics.add_duration("ExecuteTime", seconds)
        metrics.add_duration("ExecuteLatency", times.ended - times.queued)
        metrics.increment("ExecuteComputation")
        if has_nan:
            metrics.increment("NumericalErrors")
        if has_nan and self.policy.fail_on_nan:
            raise ExecutionFailed(
                status, f"the results of an execution have NaN in them; unset {FAIL_ON_NAN} to go on nevertheless"
            )

    def _extract(self, core: Core, graph: Graph, alive: bytes) -> None:
        """Compiles a graph into the compile cache instead of executing it, and sets the graph's results to zeros."""
        key = (core.local_index, tuple(graph.key), alive)
        compiled = self.extracted.get(key)
        if compiled is None:
            part = step_clock.open(COMPILE, time.perf_counter())
            try:
                compiled = self.compiled(core, graph, alive, self.flags)
            finally:
                step_clock.close(part, time.perf_counter())
            self.extracted.put(key, compiled)
        metrics.increment("ExtractedGraph")
        for number in compiled.outputs:
            buffer, layout = graph.buffers[number], compiled.layouts[number]
            core.memory.allocate(buffer.category, layout.nbytes)
            buffer.value = torch.empty_strided(
                layout.size, layout.stride, dtype=layout.device_dtype, device="cpu"
            ).zero_()
        _forget(graph.buffers)

    def _program(self, core: Core, graph: Graph, alive: bytes) -> LoadedProgram:
        # The key has no compiler flags: as with the SDK, changed flags apply only to graphs compiled later.
        key = (core.local_index, tuple(graph.key), alive)
        loaded = self.programs.get(key)
        if loaded is not None:
            metrics.increment("CachedCompile")
            return loaded
        flags = self.flags
        part = step_clock.open(COMPILE, time.perf_counter())
        try:
            began_ns, compilations = time.perf_counter_ns(), core.statistics.compilations_total
            compiled = self.compiled(core, graph, alive, flags)
            was_cached = core.statistics.compilations_total == compilations
            reason = self.graph_changes.latest[-1] if self.graph_changes.latest else FIRST_GRAPH
            reason += self.machine_code.profile_remark(flags)
            origin = GraphOrigin(time.perf_counter_ns() - began_ns, was_cached, reason, self._late_graph_stack)
            loaded = self.load(core, compiled, flags, origin)
        finally:
            step_clock.close(part, time.perf_counter())
        if ring.is_on:
            ring.record_compilation(began_ns, "found in the cache" if was_cached else "compiled", core.global_index)
        self.programs.put(key, loaded)
        return loaded

    def compiled(self, core: Core, graph: Graph, alive: bytes, flags: CompilerFlags) -> CompiledGraph:
        started = time.perf_counter()
        text = graph_text(graph, alive)
        change = self.graph_changes.add_graph(text)
        self._late_graph_stack = None
        if steps.steps_total - steps.awaits_flush >= WARM_UP_STEPS:  # the pending step is no ended one
            self._late_graph_stack = stack = cause_stack(graph, change)
            # Batches come from the script, also if a library loads them; a library may change operators of its own.
            lines = None if stack is None else ring.stack_table.stacks[stack].lines
            call_sites.count_call(LATE_GRAPH, lines, names_package=change.operator_position is not None)
            ring.traced_steps = TRACED_STEPS
        hash_text = graph_hash(text)
        compiled = self.cache.find(hash_text, flags)
        if compiled is None:
            with self.cache.locked(hash_text, flags):
                compiled = self.cache.find(hash_text, flags)
                if compiled is None:
                    compiled = self._compile(graph, alive, hash_text, text, flags)
                    core.statistics.compilations_total += 1
                    core.statistics.compile_seconds += (seconds := time.perf_counter() - started)
                    metrics.increment("UncachedCompile")
                    metrics.add_duration("CompileTime", seconds)
                    metrics.add_sample("TensorsGraphSize", len(graph.signatures))
        return compiled

    def _compile(self, graph: Graph, alive: bytes, hash_text: str, text: str, flags: CompilerFlags) -> CompiledGraph:
        reason = self.cache.failure(hash_text, flags)
        if reason is not None:
            raise CompilationFailed(f"MODULE_{hash_text}+{flags.hash_text}", reason)
        try:
            compiled = compile_graph(graph, alive, hash_text, flags.hash_text)
            self.cache.store(compiled, text, flags)
        except Exception as error:
            self.cache.store_failure(hash_text, flags, text, f"{type(error).__name__}: {error}")
            raise
        return compiled

    def load(self, core: Core, compiled: CompiledGraph, flags: CompilerFlags, origin: GraphOrigin) -> LoadedProgram:
        """Loads a compiled graph onto a core. Counts its code and scratchpad as used HBM until `unload`.

        Raises ExecutionFailed for a graph that this host can't run, and OutOfDeviceMemory if too little HBM is free.
        """
        reporter = getattr(self.monitor, "reporter", None)
        kind, lnc = getattr(reporter, "instance_type", None), getattr(reporter, "logical_neuroncore_config", None)
        try:
            check_load(flags, compiled.module, kind, lnc, self.environment)
        except ExecutionFailed:
            self.monitor.error("model")
            raise
        code_bytes = len(compiled.to_json())
        memory = core.memory
        memory.allocate(Category.MODEL_CODE, code_bytes)
        try:
            missing = compiled.scratchpad_bytes - memory.levels[Category.SCRATCHPAD]
            if missing > 0:  # the models of a core share one scratchpad
                memory.allocate(Category.SCRATCHPAD, missing)
        except OutOfDeviceMemory:
            memory.free(Category.MODEL_CODE, code_bytes)
            raise
        numerics = Numerics(flags.auto_cast, flags.auto_cast_type, self.policy.stochastic)
        is_counted_only = is_shapes_only(self.environment)
        scratchpad_bytes = 0 if is_counted_only else compiled.scratchpad_bytes  # the daemon refuses more than the HBM
        handle = self.monitor.load_model(core, compiled.module, code_bytes, scratchpad_bytes)
        check = None if self.policy.timeout_seconds is None else deadline.check
        program = Program(compiled, numerics, check)
        loaded = LoadedProgram(program, code_bytes, handle, origin, self.machine_code.native_program(program, flags))
        if is_counted_only:
            loaded.count_only()
        self.loaded.setdefault(core.local_index, {})[id(loaded)] = loaded
        return loaded

    def unload(self, loaded: LoadedProgram) -> None:
        """Unloads a program from its core and frees its HBM. A second call does nothing."""
        replayer.drop_trace(loaded.cache_entry)
        for core_index, programs in self.loaded.items():
            if programs.pop(id(loaded), None) is None:
                continue
            memory = self.cores[core_index].memory
            memory.free(Category.MODEL_CODE, loaded.code_bytes)
            needed = max((p.program.compiled.scratchpad_bytes for p in programs.values()), default=0)
            memory.free(Category.SCRATCHPAD, memory.levels[Category.SCRATCHPAD] - needed)
            self.monitor.unload_model(loaded.handle)
            self._work_unloaded.add(loaded.work, loaded.executions)
            self._operator_times.count_executions(loaded)

    def operators(self) -> tuple[OperatorTime, ...]:
        """Returns the time of each operator in all executions so far. Any thread may call it; it never blocks."""
        loaded = [program for programs in list(self.loaded.values()) for program in list(programs.values())]
        return self._operator_times.totals_by_operator(loaded)

    def operator_names(self) -> list[str]:
        """Returns the operators of the loaded program with the most FLOPs; [] if none is loaded. Any thread."""
        with buffers.lock:
            programs = [each for programs in self.loaded.values() for each in programs.values()]
        most = max(programs, key=lambda each: each.flops, default=None)
        return [] if most is None else most.program.compiled.operator_names

    def work(self) -> ExecutionWork:
        """Returns the total work of all executions so far. Any thread may call it."""
        total = ExecutionWork()
        with buffers.lock:
            total.add(self._work_unloaded, 1)
            for loaded in (each for programs in self.loaded.values() for each in programs.values()):
                total.add(loaded.work, loaded.executions)
        return total


def _forget(listed: Sequence[Buffer | None]) -> None:
    """Detaches the buffers of an executed graph from it, and frees the HBM of buffers that no tensor uses."""
    words = storages.words
    for buffer in listed:
        if buffer is not None:
            buffer.graph = None
            if words[buffer.slot] != buffer.address and buffer.value is not None:
                release(buffer)


_MOST_PREPARED = 16  # limit of programs that `prepare_profile` prepares


class LoadedProgram:
    def __init__(
        self, program: Program, code_bytes: int, handle: Any, origin: GraphOrigin, native: NativeProgram | None
    ) -> None:
        compiled = program.compiled
        self.program = program
        self.native = native  # runs machine code under --optlevel 3, otherwise None
        self.run = program.run if native is None else native.run
        self.code_bytes = code_bytes
        self.handle = handle
        self.flops = compiled.flops
        self.work = work_of(compiled, program.numerics)
        self.executions = 0
        self.output_bytes = [compiled.layouts[number].nbytes for number in compiled.outputs]
        self.output_bytes_total = sum(self.output_bytes)
        self.nan_check: NanCheck | NothingToCheck = NanCheck(compiled)
        self.cache_entry = TraceCacheEntry()
        self.samples = OperatorSamples([instruction.operator.name for instruction in compiled.instructions])
        self.origin = origin
        self.entry: GraphEntry | None = None  # the entry of the program's graph in the profile ring

    def count_only(self) -> None:
        """Makes executions return values of the right shapes without computing them."""
        self.run = shapes_only_run(self.program.compiled)
        self.nan_check = NothingToCheck()
        self.samples.next_at = sys.maxsize


def prepare_profile(programs: Iterable[LoadedProgram]) -> None:
    """Prepares the timing of single operators for the last 16 programs, before the first profiled step needs it."""
    for loaded in list(programs)[-_MOST_PREPARED:]:
        loaded.program.prepare_timed()
