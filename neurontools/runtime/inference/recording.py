"""Records a function or module into one graph, without executing it: the first half of `torch_neuronx.trace`."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neurontools.runtime.capture.eager import device_tensor
from neurontools.runtime.capture.replay import replayer
from neurontools.runtime.inference.structure import map_structure, tensors_of
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.programs.compiler import compile_graph
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program
from neurontools.runtime.tensors.buffers import Buffer, Category, Core, CoreMemory, Graph, buffers
from neurontools.runtime.tensors.device import device


class NotTraceable(RuntimeError):
    """A model can't become one graph of fixed shapes. The message names the operator or value, and a remedy."""


class UntracedOperators(NotTraceable):
    """Operators ran eagerly on values that depend on the inputs. A second recording may contain some of them."""

    def __init__(self, operators: Iterable[str]) -> None:
        self.operators = tuple(operators)
        super().__init__(
            f"torch_neuronx.trace: {', '.join(self.operators)}: the compiler does not support this operator: the shape "
            "of its result depends on values, or it runs on the host; compute it outside of the traced model"
        )


@dataclass(frozen=True, slots=True)
class OutputView:
    """One output of a recorded function: a view of the value `number` of the graph."""

    number: int
    layout: TensorLayout
    offset: int


@dataclass(slots=True)
class RecordedFunction:
    """A graph whose inputs are the tensors of the arguments, weights by name, and constants.

    `inputs` and `weights` are value numbers of the graph; a weight that the graph does not use is absent. `unsaved` has
    the names of weights that `state_dict` leaves out, `states` the name of the weight for each kept tensor. `constants`
    maps the other inputs of the graph to their values. `result` is the returned structure with an index into `outputs`
    for each tensor. `alive` has a nonzero byte for each value that the outputs need.
    """

    graph: Graph
    core: Core
    alive: bytes
    inputs: list[int]
    input_layouts: list[TensorLayout]
    weights: dict[str, int]
    weight_values: dict[str, Tensor]
    constants: dict[int, Tensor]
    unsaved: set[str]
    states: dict[int, str]
    outputs: list[OutputView] = field(default_factory=list)
    result: Any = None


def record_function(
    func: Callable[..., Any], arguments: tuple[Any, ...], core: Core, kept: Iterable[Tensor] = ()
) -> RecordedFunction:
    """Records one call of `func` with copies of the arguments on a core. Executes nothing unless `func` reads a value.

    The parameters and buffers of `func`, of the object of a bound method, and of modules in a closure are on the device
    during the call. The graph has each parameter or buffer of `kept` as an input. Other threads can't use the device
    meanwhile. Raises NotTraceable if the results depend on the inputs through the host.
    """
    recording = _Recording(core)
    with recording.active(), _weights_on_device(func, recording) as weights, _seen_as_tracing(), torch.no_grad():
        on_device = map_structure(arguments, recording.add_input)
        returned = func(*on_device)
        return recording.finish(returned, weights, kept)


class _UncountedMemory(CoreMemory):
    """The HBM of a core during a recording: shows the use before it, and counts nothing, as a compiler uses none."""

    def __init__(self, memory: CoreMemory) -> None:
        vars(self).update(copy.copy(vars(memory)))

    def allocate(self, category: Category, nbytes: int) -> None:
        pass

    def free(self, category: Category, nbytes: int) -> None:
        pass

    def move(self, source: Category, target: Category, nbytes: int) -> None:
        pass


class _Recording:
    """A recording in progress. It receives the flushes of the device, and computes values only for reads."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.graph = Graph()
        self.untraced: dict[str, None] = {}
        self._inputs: list[Buffer] = []
        self._keep: list[Tensor] = []
        self._original_values: dict[int, Tensor] = {}
        self._evaluated_signatures = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this the recording of the device. Afterwards the storages that it created have no values."""
        core = self.core
        with buffers.lock, ExitStack() as stack:
            device.flush_all("Trace")
            replayer.stop_observing()
            buffers.drain()
            before = {*buffers.by_address}
            memory, flush, pending, bound = core.memory, device.flush, core.pending, device.pending_bound
            core.memory, core.pending = _UncountedMemory(memory), self.graph
            device.enter_lazy_scope()
            device.flush, device.pending_bound, device.recording = self._flush, 1 << 62, self
            try:
                yield
            finally:
                self._keep.clear()
                for address, buffer in buffers.by_address.items():
                    if address not in before:
                        buffer.value, buffer.graph = None, None
                        buffer.failure = NotTraceable("torch_neuronx.trace was recording when it was created")
                    elif buffer.graph is self.graph:
                        buffer.graph = None
                core.memory, core.pending = memory, pending
                device.flush, device.pending_bound, device.recording = flush, bound, None
                stack.callback(device.leave_lazy_scope)

    def add_input(self, value: Tensor) -> Tensor:
        """Returns a copy of an argument on the device, which is an input of the graph. Keeps dense strides."""
        tensor = self.to_device(value.detach().clone())
        buffer = buffers.buffer_of(tensor)
        self.graph.index_of(buffer)
        self._inputs.append(buffer)
        return tensor

    def to_device(self, value: Tensor) -> Tensor:
        tensor = device_tensor(value if value.device.type == "cpu" else value.cpu(), self.core)
        self._keep.append(tensor)
        return tensor

    def before_read(self, tensor: Tensor) -> None:
        """Warns of a number that depends on the inputs. Raises NotTraceable if more than one element is read."""
        if not self._depends_on_inputs([tensor]):
            return
        if tensor.numel() > 1:
            raise NotTraceable(
                f"torch_neuronx.trace: the model reads the values of a tensor {list(tensor.shape)} that depends on its "
                "inputs; keep this part out of the traced model (no .cpu(), .numpy() or .tolist() in it)"
            )
        warnings.warn(
            "torch_neuronx.trace: the model reads a number that depends on its inputs; the traced model always uses "
            "that of the example inputs",
            torch.jit.TracerWarning,
            stacklevel=2,
        )

    def before_eager(self, operator: str, tensors: Sequence[Tensor], *, writes: bool) -> None:
        """Notes an operator that can't be part of the graph, and whose results depend on the inputs."""
        if writes or self._depends_on_inputs(tensors):
            self.untraced[operator] = None

    def _depends_on_inputs(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether a tensor is an input of the graph or computed from one, or changed by such an operator."""
        graph = self.graph
        numbers = {b.index for b in map(buffers.buffer_of, tensors) if b.graph is graph}
        if not numbers:
            return False
        depending = {buffer.index for buffer in self._inputs}
        position = number = 0
        for signature in graph.signatures:
            while graph.key[position] < 0:
                position, number = position + 1, number + 1
            used = graph.key[position + 1 : position + 1 + signature.tensor_count]
            position += 1 + signature.tensor_count
            results = range(number, number + signature.result_count)
            number += signature.result_count
            if not depending.isdisjoint(used):
                depending.update(results)
                depending.update(used[slot] for slot in signature.written_slots)
        return not depending.isdisjoint(numbers)

    def _flush(self, core: Core, reason: str) -> None:
        """Computes the values of the recorded graph from the example inputs, and leaves the graph as it is."""
        del reason
        graph = self.graph
        if core is not self.core or len(graph.signatures) == self._evaluated_signatures:
            return
        self._evaluated_signatures = len(graph.signatures)
        alive = bytes([1]) * len(graph.buffers)
        compiled = compile_graph(graph, alive, "", "")
        written = {number for instruction in compiled.instructions for number in instruction.written}
        values = []
        for number in compiled.inputs:
            value = self._original_values.setdefault(number, _value(graph.buffers[number]))
            if number in written:
                value = value.clone()
                graph.buffers[number].value = value
            values.append(value)
        program = Program(compiled, Numerics("none", "bf16"))
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast(), torch._C.DisableTorchFunction():
            outputs = program.run(values, graph.scalars, graph.hosts, core.generator.clone_state())
        for number, value in zip(compiled.outputs, outputs, strict=True):
            graph.buffers[number].value = value

    def finish(self, returned: Any, weights: _Weights, kept: Iterable[Tensor]) -> RecordedFunction:
        """Returns the recorded function. Raises NotTraceable if an operator that it needs is not in the graph."""
        if self.untraced:
            raise UntracedOperators(self.untraced)
        outputs = []

        def add_output(value: Tensor) -> int:
            tensor = self.to_device(value) if value.device.type != device.name else value.resolve_conj().resolve_neg()
            self._keep.append(tensor)
            number = self.graph.index_of(buffers.buffer_of(tensor))
            outputs.append(OutputView(number, layouts.layout_of(tensor), int(tensor.storage_offset())))
            return len(outputs) - 1

        for _ in tensors_of(returned, "output"):
            pass
        result = map_structure(returned, add_output)
        graph = self.graph
        named = {name: buffers.buffer_of(tensor) for name, tensor in weights.named.items()}
        states = {}
        for tensor in kept:
            name = weights.names.get(id(tensor))
            if name is None:
                raise NotTraceable(
                    f"torch_neuronx.trace: input_output_aliases has a tensor {[*tensor.shape]} that is no parameter or "
                    "buffer of the traced module; register it with register_buffer"
                )
            states[id(tensor)] = name
            graph.index_of(named[name])
        numbers = {name: buffer.index for name, buffer in named.items() if buffer.graph is graph}
        known = {*numbers.values(), *(buffer.index for buffer in self._inputs)}
        constants = {
            number: self._original_values.get(number, _value(graph.buffers[number])).clone()
            for number in _input_numbers(graph)
            if number not in known
        }
        alive = bytearray(len(graph.buffers))
        for output in outputs:
            alive[output.number] = 1
        return RecordedFunction(
            graph=graph,
            core=self.core,
            alive=bytes(alive),
            inputs=[buffer.index for buffer in self._inputs],
            input_layouts=[buffer.layout for buffer in self._inputs],
            weights=numbers,
            weight_values={
                name: self._original_values.get(number, _value(graph.buffers[number])).clone()
                for name, number in numbers.items()
            },
            constants=constants,
            unsaved=weights.unsaved,
            states=states,
            outputs=outputs,
            result=result,
        )


def _value(buffer: Buffer) -> Tensor:
    if buffer.value is None:
        raise NotTraceable("torch_neuronx.trace: a tensor of the model has no value; create it on the CPU before")
    return buffer.value


def _input_numbers(graph: Graph) -> list[int]:
    """Returns the value numbers of a graph's inputs."""
    numbers = []
    position = number = 0
    signatures = iter(graph.signatures)
    while position < len(graph.key):
        if graph.key[position] < 0:
            numbers.append(number)
            position, number = position + 1, number + 1
        else:
            signature = next(signatures)
            position, number = position + 1 + signature.tensor_count, number + signature.result_count
    return numbers


@dataclass(slots=True)
class _Weights:
    """Weights on the device by name, names by `id()` of the original, and the names that `state_dict` leaves out."""

    named: dict[str, Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    unsaved: set[str] = field(default_factory=set)


@contextmanager
def _weights_on_device(func: Callable[..., Any], recording: _Recording) -> Iterator[_Weights]:
    """Puts parameters, buffers and tensor attributes of the function's modules on the device during the block.

    Afterwards the modules have their attributes of before: a forward may store tensors of the device in them.
    """
    weights = _Weights()
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def move(value: Tensor, name: str, *, is_saved: bool) -> Tensor:
        if id(value) not in weights.names:
            weights.names[id(value)] = name
            weights.named[name] = recording.to_device(value.detach())
            if not is_saved:
                weights.unsaved.add(name)
        return weights.named[weights.names[id(value)]]

    try:
        for prefix, root in _modules_of(func):
            for path, module in root.named_modules():
                attributes: dict[str, Any] = vars(module)
                saved = {*module._parameters, *module._buffers} - module._non_persistent_buffers_set
                for table in (attributes["_parameters"], attributes["_buffers"], attributes):
                    before.append((table, {**table}))
                    for name, value in [*table.items()]:
                        if isinstance(value, Tensor):
                            table[name] = move(
                                value, ".".join(filter(None, (prefix, path, name))), is_saved=name in saved
                            )
                if isinstance(module, nn.RNNBase):  # its forward reads the weights from this list
                    attributes["_flat_weights"] = [
                        move(each, "", is_saved=False) for each in attributes["_flat_weights"]
                    ]
        yield weights
    finally:
        for table, values in before:
            table.update(values)
            for name in table.keys() - values.keys():
                del table[name]


def _modules_of(func: Callable[..., Any]) -> list[tuple[str, nn.Module]]:
    """Returns the modules that a callable uses, each with the prefix of its weights' names."""
    if isinstance(func, nn.Module):
        return [("", func)]
    owner = getattr(func, "__self__", None)
    if isinstance(owner, nn.Module):
        return [("", owner)]
    cells = getattr(func, "__closure__", None) or ()
    names = getattr(getattr(func, "__code__", None), "co_freevars", ())
    found = [(name, cell.cell_contents) for name, cell in zip(names, cells, strict=True)]
    scope = getattr(func, "__globals__", {})
    found += [(name, scope.get(name)) for name in getattr(getattr(func, "__code__", None), "co_names", ())]
    return [(name, value) for name, value in found if isinstance(value, nn.Module)]


@contextmanager
def _seen_as_tracing() -> Iterator[None]:
    """Makes `torch.jit.is_tracing()` true in this thread, so that models leave out branches on values."""
    original: Any = torch.jit.is_tracing
    thread = threading.get_ident()
    torch.jit.is_tracing = lambda: threading.get_ident() == thread or bool(original())
    try:
        yield
    finally:
        torch.jit.is_tracing = original
