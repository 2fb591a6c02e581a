"""Traced models on cores: loading, execution with inputs on the host, and unloading.

Executions on different cores run at the same time. Executions on one core wait for each other; the wait counts as time
in the queue. The lock of the runtime is held only to count.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from neurontools.driver.environment import is_shapes_only
from neurontools.model import ModelPlacement
from neurontools.runtime.execution.executor import ExecutionTimes, Executor, LoadedProgram
from neurontools.runtime.execution.graph_description import GraphOrigin
from neurontools.runtime.execution.injection import apply_fault
from neurontools.runtime.execution.policy import NanCheck, deadline
from neurontools.runtime.execution.rank_threads import current_membership
from neurontools.runtime.execution.traced_work import TracedModelWork, traced_model_works
from neurontools.runtime.inference.placement import cores_of_context, pinned_core
from neurontools.runtime.inference.traced_model import OutputSpec, TracedModel, layout_of, weights_id
from neurontools.runtime.launch.device_registration import before_report_hooks, executor
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.tensors.buffers import Category, Core, buffers

_core_locks: dict[int, threading.Lock] = {}
_collected: deque[list[ModelOnCore]] = deque()


class ModelOnCore:
    """A traced model loaded onto one core. Holds HBM for its code, scratchpad, weights and states until `unload`.

    The constructor raises OutOfDeviceMemory if too little HBM is free, and ExecutionFailed if this host can't run it.
    """

    def __init__(
        self,
        model: TracedModel,
        weights: Sequence[Tensor],
        core: Core,
        weights_id: str,
        *,
        owns_weights: bool = True,
    ) -> None:
        """Loads the model. Without `owns_weights`, another model on the core counts the HBM of the weights."""
        began = perf_counter()
        self.model, self.core = model, core
        self._counters = inference_log.model(model.name)
        self._executor: Executor = executor()
        self._lock = _core_locks.setdefault(core.global_index, threading.Lock())
        self._values = dict(zip(model.numbers, weights, strict=False))
        for weight in {*model.states.values()}:
            self._values[model.numbers[weight]] = weights[weight].clone()
        self._hosts = [*weights[len(model.numbers) :]]
        self._arguments = {spec.number: index for index, spec in enumerate(model.inputs) if spec.number is not None}
        written = {number for instruction in model.compiled.instructions for number in instruction.written}
        self._written = [position for position, number in enumerate(model.compiled.inputs) if number in written]
        self._positions = {number: position for position, number in enumerate(model.compiled.outputs)}
        self._input_layouts = [layout_of(spec) for spec in model.inputs]
        self._views = _view_makers(model)
        own_values = [*self._values.values(), *self._hosts] if owns_weights else []
        self.weight_bytes = sum(value.nbytes for value in own_values)
        self._argument_bytes = sum(layout.nbytes for layout in self._input_layouts)
        origin = GraphOrigin(0, True, "it was traced")
        with buffers.lock:
            buffers.drain()
            core.memory.allocate(Category.CONSTANTS, self.weight_bytes)
            try:
                self.loaded: LoadedProgram = self._executor.load(core, model.compiled, model.flags, origin)
            except BaseException:
                core.memory.free(Category.CONSTANTS, self.weight_bytes)
                raise
        if not is_shapes_only(self._executor.environment):
            self.loaded.nan_check = NanCheck(model.compiled, reads_updated=False)
        self._placement = ModelPlacement(
            core.local_index,
            load_seconds=perf_counter() - began,
            device_memory_bytes=self.weight_bytes + self.loaded.code_bytes,
            weights_bytes=self.weight_bytes,
            weights_id=weights_id,
        )
        self._counters.load([self._placement])
        self.work = traced_model_works.register(self._initial_work(), model.compiled.module)
        self.is_loaded = True

    def _initial_work(self) -> TracedModelWork:
        compiled, loaded = self.model.compiled, self.loaded
        is_cast = loaded.program.numerics.multiplied("float32") != "float32"
        return TracedModelWork(
            name=self.model.name,
            batch_samples=self.model.inputs[0].shape[0] if self.model.inputs and self.model.inputs[0].shape else 1,
            work=loaded.work,
            moved_bytes=loaded.work.moved_bytes // 2 if is_cast else loaded.work.moved_bytes,
            weight_bytes=self.weight_bytes,
            code_bytes=loaded.code_bytes,
            activation_bytes=self._argument_bytes + loaded.output_bytes_total + compiled.scratchpad_bytes,
            operators=compiled.operator_names,
            core_indices={self.core.global_index},
        )

    def unload(self) -> None:
        """Unloads the model and frees its HBM. The execution that runs now ends first."""
        with self._lock, buffers.lock:
            self.unload_unused()

    def unload_unused(self) -> None:
        """Unloads a model that no thread executes any more. The caller holds the lock of the buffers."""
        if self.is_loaded:
            self.is_loaded = False
            self._counters.unload([self._placement])
            self._executor.unload(self.loaded)
            self.core.memory.free(Category.CONSTANTS, self.weight_bytes)

    def replace_weights(self, weights: Sequence[Tensor]) -> None:
        """Replaces the weights by others of the same shapes and types. The execution that runs now ends first."""
        with self._lock:
            self._values.update(zip(self.model.numbers, weights, strict=False))

    def read_weight(self, index: int) -> Tensor:
        """Returns the value of a weight or state by its index, and not a copy of it."""
        return self._values[self.model.numbers[index]]

    def write_weight(self, index: int, value: Tensor) -> None:
        """Replaces a weight or state. The caller executes nothing at the same time."""
        self._values[self.model.numbers[index]] = value

    def execute(self, arguments: Sequence[Tensor]) -> list[Tensor] | None:
        """Executes the model once, after the executions that wait for its core. Any thread may call it.

        `arguments` have the shapes and types of the traced inputs. Returns None if the model was unloaded meanwhile.
        """
        membership = current_membership()
        if membership is not None:  # the model of one rank: its ParallelModel counts the queue
            exchange, rank = membership
            self.work.cores_per_execution = len(exchange.cores)
            with self._lock:
                return self._execute(arguments, exchange.queued_at_seconds, is_call=not rank)
        queued = perf_counter()
        self._counters.change_queue_depth(1)
        with self._lock:
            self._counters.change_queue_depth(-1)
            return self._execute(arguments, queued) if self.is_loaded else None

    def _execute(self, arguments: Sequence[Tensor], queued: float, *, is_call: bool = True) -> list[Tensor]:
        core, loaded, process_executor = self.core, self.loaded, self._executor
        memory, statistics, samples = core.memory, core.statistics, loaded.samples
        policy, monitor = process_executor.policy, process_executor.monitor
        needed_bytes = self._argument_bytes + loaded.output_bytes_total
        started = faulty = None
        queued_until = perf_counter()
        with buffers.lock:
            try:
                memory.allocate(Category.TENSORS, needed_bytes)
            except BaseException as error:
                started = monitor.begin(loaded.handle, queued)
                self._count_failure(started, error, queued, queued_until, is_call=is_call)
                raise
            if process_executor.faults.by_core:
                faulty = apply_fault(loaded.program, core, process_executor.faults, policy.timeout_seconds)
        try:
            values = self._values_of(arguments)
            is_sampled = (
                loaded.executions >= samples.next_at
                and faulty is None
                and (loaded.native is None or not loaded.native.is_native)
                and samples.is_due()
            )
            if is_sampled:
                loaded.program.prepare_timed()
            if policy.timeout_seconds is not None:
                deadline.start(policy.timeout_seconds, f"Neuron Device {memory.device_index} NC {core.global_index}")
            # The caller's default device and other torch modes must not affect the operators of the program.
            with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), torch._C.DisableTorchFunction():
                begun = perf_counter()
                started = monitor.begin(loaded.handle, begun)
                if is_sampled:
                    computed, times = loaded.program.run_timed(values, self.model.scalars, self._hosts, core.generator)
                    samples.add_times(times)
                else:
                    run = loaded.run if faulty is None else faulty.run
                    computed = run(values, self.model.scalars, self._hosts, core.generator)
                ended = perf_counter()
                deadline.check()
                has_nan = loaded.nan_check.finds(computed, (), is_exact=policy.fail_on_nan or faulty is not None)
                outputs = self._outputs_of(computed, values, arguments)
        except BaseException as error:
            with buffers.lock:
                memory.free(Category.TENSORS, needed_bytes)
                self._count_failure(started, error, queued, queued_until, is_call=is_call)
            raise
        finally:
            deadline.clear()
        with buffers.lock:
            memory.free(Category.TENSORS, needed_bytes)
            statistics.to_device_bytes += self._argument_bytes
            statistics.from_device_bytes += loaded.output_bytes_total
            times_of_execution = ExecutionTimes(queued, queued_until, begun, ended)
            process_executor.count_success(core, loaded, started, times_of_execution, has_nan=has_nan)
            self.work.executions_total += is_call
        if is_call:
            self._counters.record_call(
                _batch_size(arguments), perf_counter() - queued, ended - begun, queued_until - queued
            )
        return outputs

    def _count_failure(
        self, started: Any, error: BaseException, queued: float, queued_until: float, *, is_call: bool
    ) -> None:
        now = perf_counter()
        self._executor.count_failure(self.core, started, error, queued_until - queued, now)
        if is_call:
            self._counters.record_call(0, now - queued, 0.0, queued_until - queued, failed=True)

    def _values_of(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Returns the inputs of the program, with copies of those that it changes."""
        known, given = self._values, self._arguments
        values = [
            known[number] if number in known else self._argument(arguments, given[number])
            for number in self.model.compiled.inputs
        ]
        for position in self._written:
            values[position] = values[position].clone()
        return values

    def _argument(self, arguments: Sequence[Tensor], index: int) -> Tensor:
        value, layout = arguments[index], self._input_layouts[index]
        if value.dtype is layout.device_dtype and value.stride() == layout.stride:
            return value
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.device_dtype).copy_(value)

    def _outputs_of(self, computed: list[Tensor], values: list[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
        """Returns the outputs, except those that become states."""
        outputs = []
        for index, spec in enumerate(self.model.outputs):
            position = self._positions.get(spec.number)
            if position is not None:
                value = computed[position]
            elif spec.number in self.model.compiled.inputs:
                value = values[self.model.compiled.inputs.index(spec.number)]
            elif spec.number in self._values:
                value = self._values[spec.number]
            else:
                value = self._argument(arguments, self._arguments[spec.number])
            view = self._views[index]
            result = value if view is None else view(value)
            weight = self.model.states.get(index)
            if weight is None:
                outputs.append(result)
            else:
                self._values[self.model.numbers[weight]] = result
        return outputs


def _view_makers(model: TracedModel) -> list[Any]:
    """Returns, for each output, a function from the value of its storage to the output; None for the whole value."""
    numbers = [spec.number for spec in model.outputs]
    return [_view_maker(model, spec, is_shared=numbers.count(spec.number) > 1) for spec in model.outputs]


def _view_maker(model: TracedModel, spec: OutputSpec, *, is_shared: bool) -> Any:
    own, layout = model.compiled.layouts.get(spec.number), layout_of(spec)
    is_computed = spec.number in model.compiled.outputs
    is_whole = own is layout and not spec.offset and layout.device_dtype is layout.dtype
    if is_whole and is_computed and not is_shared:
        return None

    def view(value: Tensor) -> Tensor:
        if value.dtype is layout.device_dtype:
            result = value.as_strided(layout.size, layout.stride, spec.offset)
        else:
            result = torch.empty(0, dtype=layout.device_dtype).set_(
                value.untyped_storage(), spec.offset, layout.size, layout.stride
            )
        return result.to(layout.dtype, copy=True, memory_format=torch.contiguous_format)

    return view


class NeuronModel:
    """A traced model of this process, on no core, one core or several cores. Executions take its cores in turn.

    `is_dynamic` allows other batch sizes: inputs are split and padded along dimension 0. Any thread may execute.
    """

    def __init__(self, model: TracedModel, weights: list[Tensor]) -> None:
        self.model = model
        self.weights = weights
        self._weights_id = model.weights_id
        self._on_cores: list[ModelOnCore] = []
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._loading: Future[None] | None = None
        self.is_dynamic = False
        self.owns_weights = True

    @property
    def cores(self) -> list[Core]:
        """The cores of the model; empty before it is loaded."""
        return [each.core for each in self._on_cores]

    def load(self, cores: Sequence[Core] | None = None, *, is_async: bool = False) -> None:
        """Loads the model onto cores, and unloads it from those it had. None means the cores of the context.

        Raises what the constructor of ModelOnCore raises; with `is_async`, the next execution raises it.
        """
        self.wait()
        chosen = cores_of_context() if cores is None else [*cores]
        if not is_async:
            with self._lock:
                self._load(chosen)
            return
        future: Future[None] = Future()
        self._loading = future

        def load() -> None:
            try:
                with self._lock:
                    self._load(chosen)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=load, name="neuron-load", daemon=True).start()

    def unload(self) -> None:
        """Unloads the model from all cores. The next execution loads it again."""
        self.load([])

    def read_weight(self, index: int) -> Tensor:
        """Returns a weight or state of the model on its first core, and not a copy of it."""
        return self._on_cores[0].read_weight(index)

    def write_weight(self, index: int, value: Tensor) -> None:
        """Replaces a weight or state on all cores. The caller executes nothing at the same time."""
        for each in self._on_cores:
            each.write_weight(index, value)

    def _load(self, cores: Sequence[Core]) -> None:
        unload_collected()
        before, self._on_cores = self._on_cores, []
        for each in before:
            each.unload()
        with ExitStack() as on_failure:
            on_cores = []
            for core in cores:
                each = ModelOnCore(self.model, self.weights, core, self._weights_id, owns_weights=self.owns_weights)
                on_failure.callback(each.unload)
                on_cores.append(each)
            on_failure.pop_all()
        self._on_cores = on_cores

    def wait(self) -> None:
        """Waits for a load in a thread. Raises the error with which it failed."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.result()

    def execute(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Executes the model on its next core, or on the pinned core of this thread. Loads it first if it is on none.

        Raises RuntimeError for inputs that differ from the traced ones in number, shape, type or device.
        """
        if self.is_dynamic:
            batch_size, parts = split_batch(inputs, self.batch_size())
            if parts:
                outputs = [self._execute(part) for part in parts]
                for each in self._on_cores[:1]:
                    each.work.padded_samples += -batch_size % self.batch_size()
                return [torch.cat(same)[:batch_size] for same in zip(*outputs, strict=True)]
        return self._execute(inputs)

    def _execute(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.check_inputs(inputs)
        if self._loading is not None:
            self.wait()
        if _collected:
            unload_collected()
        while True:
            on_cores = self._on_cores
            if not on_cores:
                with self._lock:
                    if not self._on_cores:
                        self._load(cores_of_context())
                continue
            chosen = on_cores[0] if len(on_cores) == 1 else self._choose(on_cores)
            outputs = chosen.execute(inputs)
            if outputs is not None:  # None: another thread has moved the model
                return outputs

    def _choose(self, on_cores: Sequence[ModelOnCore]) -> ModelOnCore:
        core = pinned_core()
        pinned = next((each for each in on_cores if each.core is core), None)
        return on_cores[next(self._turn) % len(on_cores)] if pinned is None else pinned

    def batch_size(self) -> int:
        """Returns the traced batch size: dimension 0 of all inputs and outputs.

        Raises ValueError if they have no common dimension 0.
        """
        shapes = [*(spec.shape for spec in self.model.inputs), *(spec.size for spec in self.model.outputs)]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        if len(sizes) != 1 or sizes == {0}:
            raise ValueError(
                "dynamic batching needs one size of dimension 0 for all inputs and outputs; this model was traced with "
                f"{', '.join(str([*shape]) for shape in shapes)}; trace it with a batch in dimension 0 of each"
            )
        return sizes.pop()

    def check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Raises RuntimeError if the inputs are not those that the model was traced with."""
        specs = self.model.inputs
        if len(inputs) != len(specs):
            raise RuntimeError(
                f"Expected {len(specs)} input tensors, received {len(inputs)}; pass those it was traced with"
            )
        for index, (value, spec) in enumerate(zip(inputs, specs, strict=True)):
            if value.shape != spec.shape:
                raise RuntimeError(
                    f"Incorrect tensor shape at input tensor #{index}: received {_shape_text(value.shape)}, expected "
                    f"{_shape_text(spec.shape)}; a compiled model has fixed shapes: pad the input, or trace the model "
                    "with this shape"
                )
            if value.dtype is not spec.dtype:
                raise RuntimeError(
                    f"Incorrect tensor type at input tensor #{index}: received {_dtype_text(value.dtype)}, expected "
                    f"{_dtype_text(spec.dtype)}; convert it with .to({spec.dtype})"
                )
            if not value.is_cpu:
                raise RuntimeError(
                    f"Incorrect device at input tensor #{index}: received {value.device}, expected cpu; a traced model "
                    "moves its inputs itself: call .cpu()"
                )

    def empty_outputs(self) -> list[Tensor]:
        """Returns zeros with the shapes and types of the outputs."""
        outputs = [spec for index, spec in enumerate(self.model.outputs) if index not in self.model.states]
        return [torch.zeros(spec.size, dtype=spec.dtype) for spec in outputs]

    def replace_weights(self, weights: dict[str, Tensor]) -> None:
        """Replaces weights by name. Raises ValueError for missing names, and for other shapes or types."""
        replaced = [*self.weights]
        for index, name in enumerate(self.model.names):
            if not name:
                continue
            if name not in weights:
                raise ValueError(
                    f"replace_weights: the weight {name!r} is missing; pass the state_dict of the same model"
                )
            new, old = weights[name], self.weights[index]
            if new.shape != old.shape:
                raise ValueError(
                    f"replace_weights: {name!r} has shape {[*new.shape]}, the traced model has {[*old.shape]}; pass "
                    "weights of the same model"
                )
            replaced[index] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(new.detach())
        self.wait()
        with self._lock:
            self.weights[:] = replaced
            self._weights_id = weights_id(replaced)
            for each in self._on_cores:
                each.replace_weights(replaced)

    def __del__(self) -> None:
        # The garbage collector may run this in any thread at any point, so the model is unloaded later.
        if getattr(self, "_on_cores", None):
            _collected.append(self._on_cores)


def unload_collected(*_: object) -> None:
    """Unloads the models that no object refers to any more. Skips it while another thread holds the runtime's lock."""
    if not _collected or not buffers.lock.acquire(blocking=False):
        return
    try:
        with suppress(IndexError):
            while True:
                for each in _collected.popleft():
                    each.unload_unused()
    finally:
        buffers.lock.release()


before_report_hooks.append(unload_collected)


def split_batch(inputs: Sequence[Tensor], traced_size: int) -> tuple[int, list[list[Tensor]]]:
    """Splits inputs along dimension 0 into parts of the traced size, and pads the last part with copies of a row.

    Returns the size of the batch and the parts; no parts if the batch has the traced size already. Raises ValueError
    for inputs of different batch sizes, or without rows.
    """
    sizes = {value.shape[0] if value.dim() else 0 for value in inputs}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            f"dynamic batching: the inputs have batch sizes {sorted(sizes)}; give all inputs the same number of rows, "
            "at least one"
        )
    size = sizes.pop()
    if size == traced_size:
        return size, []
    missing = -size % traced_size
    if missing:
        inputs = [torch.cat([value, value[-1:].expand(missing, *value.shape[1:])]) for value in inputs]
    return size, [list(part) for part in zip(*(value.split(traced_size) for value in inputs), strict=True)]


def _batch_size(arguments: Sequence[Tensor]) -> int:
    return arguments[0].shape[0] if arguments and arguments[0].dim() else 1


def _shape_text(shape: Sequence[int]) -> str:
    return " ".join(map(str, shape))


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
