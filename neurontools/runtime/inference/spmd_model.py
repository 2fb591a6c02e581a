"""One graph for all ranks, for several input shapes: the models of neuronx_distributed.ModelBuilder.

The graphs of all shapes use the same weights and states on a core. A buffer that a model changes becomes a state.

Source: "NxD Core inference: ModelBuilder and NxDModel" of the AWS Neuron documentation.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.policy import ExecutionFailed
from neurontools.runtime.inference.loaded_model import NeuronModel
from neurontools.runtime.inference.parallel_model import RankThreads
from neurontools.runtime.inference.placement import selected_cores
from neurontools.runtime.inference.recording import record_function
from neurontools.runtime.inference.structure import map_structure, tensors_of
from neurontools.runtime.inference.traced_model import TracedModel
from neurontools.runtime.inference.tracing import trace_model
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.tensors.buffers import Core
from neurontools.runtime.tensors.device import device

FORMAT = "neurontools-nxd-1"


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """Example inputs of a module's forward by name, in the order of its parameters."""

    parameters: tuple[str, ...]
    values: dict[str, Tensor]


def bind_inputs(model: nn.Module, args: Any, kwargs: Mapping[str, Tensor] | None) -> ExampleInputs:
    """Returns example inputs by the names of the parameters of `model.forward`. Raises TypeError for other ones."""
    signature = inspect.signature(model.forward)
    given = args if isinstance(args, (tuple, list)) else () if args is None else (args,)
    return ExampleInputs(tuple(signature.parameters), {**signature.bind(*given, **(kwargs or {})).arguments})


@dataclass(slots=True)
class TracedShape:
    """The graph for one set of input shapes. `states` has the index of the weight of each state.

    `defaults` are the weights of the traced module, which states and constants keep.
    """

    traced: TracedModel
    names: tuple[str, ...]
    result: Any
    states: dict[str, int]
    defaults: list[Tensor]
    models: list[NeuronModel] = field(default_factory=list)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: spec.shape for name, spec in zip(self.names, self.traced.inputs, strict=True)}

    def weights_of(self, given: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the weights of one rank. Raises ValueError for a missing weight, and for another shape."""
        weights = [*self.defaults]
        for index, name in enumerate(self.traced.names):
            if not name or (name not in given and index in self.states.values()):
                continue
            if name not in given:
                raise ValueError(f"set_weights: the weight {name!r} is missing; pass what shard_checkpoint returns")
            old, new = weights[index], given[name].detach()
            if new.shape != old.shape:
                raise ValueError(
                    f"set_weights: {name!r} has shape {[*new.shape]}, a rank of the model has {[*old.shape]}; pass "
                    "what shard_checkpoint returns for this number of ranks"
                )
            weights[index] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(new)
        return weights


def find_states(model: nn.Module, inputs: ExampleInputs) -> tuple[list[str], int]:
    """Records a module once. Returns the names of the buffers that it changes, and the number of its outputs."""
    found: list[str] = []
    record_function(_forward_with_states(model, inputs, found), tuple(inputs.values.values()), device.current)
    *states, count = found
    return states, int(count)


def trace_shape(model: nn.Module, inputs: ExampleInputs, compiler_args: Any, workdir: Path | None) -> TracedShape:
    """Traces and compiles a module for inputs of these shapes. Raises what torch_neuronx.trace raises."""
    states, count = find_states(model, inputs)
    buffers = dict(model.named_buffers())
    neuron_model, result = trace_model(
        _forward_with_states(model, inputs, []),
        tuple(inputs.values.values()),
        input_output_aliases={buffers[name]: count + index for index, name in enumerate(states)},
        compiler_args=compiler_args,
        compiler_workdir=workdir,
        has_separate_weights=True,
    )
    traced = neuron_model.model
    indices = dict(zip(states, traced.states.values(), strict=True))
    return TracedShape(traced, (*inputs.values,), result[0], indices, neuron_model.weights)


def _forward_with_states(model: nn.Module, inputs: ExampleInputs, found: list[str]) -> Any:
    """Returns a method of the module that returns its result and its changed buffers.

    Writes the names of the changed buffers and the number of tensors of the result into `found`.
    """

    def forward(self: nn.Module, *values: Tensor) -> tuple[Any, list[Tensor]]:
        before = {name: (buffer, buffer._version) for name, buffer in self.named_buffers()}
        result = self(**dict(zip(inputs.values, values, strict=True)))
        after = dict(self.named_buffers())
        changed = [name for name, (old, version) in before.items() if after[name] is not old or old._version != version]
        found[:] = [*changed, str(sum(1 for _ in tensors_of(result, "output")))]
        return result, [after[name] for name in changed]

    forward.__qualname__ = type(model).__name__
    return types.MethodType(forward, model)


class SpmdModel(nn.Module):
    """Graphs that `world_size` ranks share, each rank with weights and states of its own, on core N of the process.

    The inputs choose the graph by their names and shapes. All ranks get the same inputs; the result is that of rank 0.
    """

    def __init__(self, world_size: int, parameters: Sequence[str], shapes: Mapping[str, TracedShape]) -> None:
        super().__init__()
        self.world_size = world_size
        self.parameters_of_forward = (*parameters,)
        self.loaded_on_neuron = False
        self._shapes = dict(shapes)
        self._weights: list[dict[str, Tensor]] | None = None
        self._states: list[dict[str, Tensor]] = []
        self._cores: list[Core] = []
        self._threads = RankThreads(world_size)
        self._counters = inference_log.model(next(iter(shapes.values())).traced.name)

    def get_available_keys(self) -> set[str]:
        """Returns the tags of the graphs."""
        return {*self._shapes}

    def set_weights(self, sharded_checkpoint: Sequence[Mapping[str, Tensor]]) -> None:
        """Sets the weights: one dictionary by name for each rank. Raises ValueError if they do not fit the model."""
        if self.loaded_on_neuron:
            raise ValueError("set_weights: the model is on its cores already; call replace_weights()")
        if len(sharded_checkpoint) != self.world_size:
            raise ValueError(
                f"set_weights: {len(sharded_checkpoint)} dictionaries for {self.world_size} ranks; pass what "
                "shard_checkpoint returns"
            )
        for shape in self._shapes.values():
            shape.models = [NeuronModel(shape.traced, shape.weights_of(weights)) for weights in sharded_checkpoint]
        self._weights = [dict(weights) for weights in sharded_checkpoint]

    def to_neuron(self) -> None:
        """Loads rank N onto core N. States begin with the values of the traced module. Does nothing if it is loaded.

        Raises OutOfDeviceMemory if a core has too little HBM, and ValueError if the process has too few cores.
        """
        if self.loaded_on_neuron:
            return
        if self._weights is None:
            raise RuntimeError("to_neuron: the model has no weights; call set_weights() before")
        cores = selected_cores(0, self.world_size)
        with ExitStack() as on_failure:
            for rank, core in enumerate(cores):
                for number, shape in enumerate(self._shapes.values()):
                    model = shape.models[rank]
                    model.owns_weights = not number  # the graphs of a core share its weights
                    on_failure.callback(model.unload)
                    model.load([core])
            on_failure.pop_all()
        first_defaults = [
            {
                name: shape.models[rank].read_weight(index)
                for shape in self._shapes.values()
                for name, index in shape.states.items()
            }
            for rank in range(self.world_size)
        ]
        self._cores, self._states, self.loaded_on_neuron = cores, first_defaults, True

    def replace_weights(self, sharded_checkpoint: Sequence[Mapping[str, Tensor]]) -> None:
        """Replaces the weights and loads the model again, with its first states."""
        for shape in self._shapes.values():
            for model in shape.models:
                model.unload()
        self.loaded_on_neuron = False
        self.set_weights(sharded_checkpoint)
        self.to_neuron()

    def read_from_neuron_buffer(self, buffer_key: str, rank: int) -> Tensor:
        """Returns a copy of a state or weight of a rank. Raises KeyError without it."""
        found = {**(self._weights or [{}])[rank], **(self._states or [{}])[rank]}
        return found[buffer_key].clone()

    def write_to_neuron_buffer(self, tensor: Tensor, buffer_key: str, rank: int) -> None:
        """Sets a state of a rank. Raises KeyError without such a state, or for a tensor of another shape."""
        state = self._states[rank].get(buffer_key) if self._states else None
        if state is None or state.shape != tensor.shape:
            raise KeyError(
                f"write_to_neuron_buffer: {buffer_key!r} of shape {[*tensor.shape]} is no state of rank {rank}; the "
                f"states are {sorted(self._states[rank]) if self._states else 'those of a loaded model'}"
            )
        self._states[rank][buffer_key] = tensor.detach().to(state.dtype).clone()

    def forward(
        self, *args: Tensor, model_name: str | None = None, forward_mode: str = "default", **kwargs: Any
    ) -> Any:
        """Executes the graph for the shapes of the inputs, or the graph with the tag `model_name`.

        Raises RuntimeError before `to_neuron`, and ValueError for shapes that no graph has.
        """
        if not self.loaded_on_neuron:
            raise RuntimeError("the model is on no core; call set_weights() and to_neuron() before")
        if forward_mode != "default":
            raise NotImplementedError(
                f"NxDModel(forward_mode={forward_mode!r}) is not part of the simulated runtime; leave it out"
            )
        inputs = {**dict(zip(self.parameters_of_forward, args, strict=False)), **kwargs}
        shape = self._choose(inputs, model_name)
        values = [inputs[name] for name in shape.names]
        outputs = self._threads.execute(self._cores, self._counters, lambda rank: self._execute(shape, rank, values))
        return map_structure(shape.result, outputs[0].__getitem__)

    def _choose(self, inputs: Mapping[str, Tensor], tag: str | None) -> TracedShape:
        shapes = {name: tuple(value.shape) for name, value in inputs.items()}
        found = [each for key, each in self._shapes.items() if tag in (None, key) and each.shapes == shapes]
        if not found:
            known = "; ".join(f"{key}: {shape.shapes}" for key, shape in self._shapes.items())
            raise ValueError(f"no graph has inputs of the shapes {shapes}; pad the inputs to those of one: {known}")
        if len(found) > 1:
            raise ValueError(f"several graphs have inputs of the shapes {shapes}; name one with model_name")
        return found[0]

    def _execute(self, shape: TracedShape, rank: int, values: Sequence[Tensor]) -> list[Tensor]:
        model, states = shape.models[rank], self._states[rank]
        for name, index in shape.states.items():
            model.write_weight(index, states[name])
        outputs = model.execute(values)
        for name, index in shape.states.items():
            states[name] = model.read_weight(index)
        return outputs

    def save(self, path_to_save: str | Path, save_weights: bool = False) -> None:
        """Saves the graphs, and with `save_weights` the weights, to a file that `load` reads."""
        torch.save(
            {
                "format": FORMAT,
                "world_size": self.world_size,
                "parameters": [*self.parameters_of_forward],
                "shapes": {
                    tag: {
                        "document": torch.frombuffer(bytearray(shape.traced.to_json()), dtype=torch.uint8),
                        "names": [*shape.names],
                        "result": repr(shape.result),
                        "states": shape.states,
                        "defaults": shape.defaults,
                    }
                    for tag, shape in self._shapes.items()
                },
                "weights": self._weights if save_weights else None,
            },
            path_to_save,
        )

    @classmethod
    def load(cls, path_to_model: str | Path) -> SpmdModel:
        """Reads what `save` wrote. Loads the model onto its cores if the file has its weights.

        Raises ExecutionFailed for any other file, and for one of another version.
        """
        try:
            document = torch.load(path_to_model, map_location="cpu", weights_only=True)
            if document["format"] != FORMAT:
                raise ValueError(document["format"])
            shapes = {
                str(tag): TracedShape(
                    TracedModel.from_json(bytes(each["document"].numpy())),
                    tuple(map(str, each["names"])),
                    ast.literal_eval(each["result"]),
                    dict(each["states"]),
                    [*each["defaults"]],
                )
                for tag, each in document["shapes"].items()
            }
            model = cls(int(document["world_size"]), document["parameters"], shapes)
            weights = document["weights"]
        except (OSError, ExecutionFailed):
            raise
        except Exception as error:  # torch.load and a changed file raise errors of many types
            raise ExecutionFailed(
                NrtStatus.UNSUPPORTED_NEFF_VERSION,
                f"{path_to_model} is no saved NxDModel of this version ({type(error).__name__}); trace the model again",
            ) from None
        if weights is not None:
            model.set_weights(weights)
            model.to_neuron()
        return model
