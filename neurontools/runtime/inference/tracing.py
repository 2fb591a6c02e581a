"""`torch_neuronx.trace`: compiles a function or module to a TorchScript module that runs on a NeuronCore.

Source: "PyTorch NeuronX Tracing API for Inference" of the AWS Neuron documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neurontools.runtime.inference.loaded_model import NeuronModel
from neurontools.runtime.inference.recording import RecordedFunction, UntracedOperators, record_function
from neurontools.runtime.inference.script_module import build_module
from neurontools.runtime.inference.structure import as_arguments, tensors_of
from neurontools.runtime.inference.traced_model import TracedModel, build_traced_model
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.programs.compiler import CompilerFlags, graph_text, parse_compiler_flags
from neurontools.runtime.tensors.buffers import buffers
from neurontools.runtime.tensors.device import device


class PartitionerConfig:
    """Accepts the options of the graph partitioner, which has no effect: a traced model is compiled as a whole."""

    def __init__(
        self,
        *,
        trace_kwargs: Mapping[str, Any] | None = None,
        model_support_percentage_threshold: float = 0.5,
        min_subgraph_size: int = -1,
        max_subgraph_count: int = -1,
        ops_to_partition: Iterable[str] | None = None,
        analyze_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.trace_kwargs = trace_kwargs
        self.model_support_percentage_threshold = model_support_percentage_threshold
        self.min_subgraph_size = min_subgraph_size
        self.max_subgraph_count = max_subgraph_count
        self.ops_to_partition = ops_to_partition
        self.analyze_parameters = analyze_parameters


def trace(
    func: Callable[..., Any],
    example_inputs: Any,
    *,
    input_output_aliases: Mapping[Tensor, int] | None = None,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: PartitionerConfig | None = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> torch.jit.ScriptModule:
    """Compiles `func` for inputs of the shapes and types of `example_inputs`, and loads it onto the next NeuronCore.

    Returns a module that takes and returns CPU tensors. The compile cache keeps its graph. `input_output_aliases` maps
    parameters or buffers to indices of outputs: such a tensor stays on the core, takes the value of the output after
    each execution, and is not returned. `compiler_workdir` is a directory for the recorded and the compiled graph.
    With `inline_weights_to_neff=False`, `replace_weights` can replace the weights. `cpu_backend` requires `--target` in
    `compiler_args`, and loads the model only when it is executed or moved. `partitioner_config` has no effect: a model
    is compiled as a whole.

    Raises NotTraceable for results that depend on the inputs through the host, UnsupportedStructure for inputs or
    results that are no tensors, and InvalidCompilerFlags.
    """
    if cpu_backend and _flags_of(compiler_args).target is None:
        raise ValueError(
            "torch_neuronx.trace: cpu_backend=True needs the target in compiler_args, such as "
            'compiler_args="--target trn1"'
        )
    del partitioner_config
    arguments = as_arguments(example_inputs)
    model, result = trace_model(
        func,
        arguments,
        input_output_aliases=input_output_aliases,
        compiler_workdir=compiler_workdir,
        compiler_args=compiler_args,
        has_separate_weights=not inline_weights_to_neff,
    )
    module = build_module(model, arguments, result)
    if not cpu_backend:
        model.load()
    return module


def trace_model(
    func: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    input_output_aliases: Mapping[Tensor, int] | None = None,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    has_separate_weights: bool = False,
) -> tuple[NeuronModel, Any]:
    """Compiles `func` as `trace` does. Returns a model on no core, and the structure of its result.

    The structure has an index into the outputs in place of each tensor.
    """
    flags = _flags_of(compiler_args)
    if not callable(func):
        raise TypeError(f"torch_neuronx.trace: a {type(func).__name__} can't be traced; pass a module or a function")
    for _ in tensors_of(arguments, "input"):  # raises an error for anything else
        pass
    aliases = input_output_aliases or {}
    recorded = _record(func, arguments, aliases)
    result, states = _without_states(recorded, aliases)
    with buffers.lock:
        compiled = executor().compiled(recorded.core, recorded.graph, recorded.alive, flags)
    name = type(func).__name__ if isinstance(func, nn.Module) else getattr(func, "__qualname__", type(func).__name__)
    traced, weights = build_traced_model(
        recorded, compiled, flags, name, states, has_separate_weights=has_separate_weights
    )
    if compiler_workdir is not None:
        _write_workdir(Path(compiler_workdir), traced, recorded)
    return NeuronModel(traced, weights), result


def _record(func: Callable[..., Any], arguments: tuple[Any, ...], kept: Iterable[Tensor]) -> RecordedFunction:
    """Records a function. Records it again if operators of the script ran that are verified from then on."""
    core = device.current
    try:
        return record_function(func, arguments, core, kept)
    except UntracedOperators:
        return record_function(func, arguments, core, kept)


def _without_states(recorded: RecordedFunction, aliases: Mapping[Tensor, int]) -> tuple[Any, dict[int, str]]:
    """Returns the result without the outputs that become states, and the name of the weight for each such output."""
    if not aliases:
        return recorded.result, {}
    states = {}
    for tensor, index in aliases.items():
        if not 0 <= index < len(recorded.outputs):
            raise ValueError(
                f"torch_neuronx.trace: input_output_aliases names output {index}, the model has "
                f"{len(recorded.outputs)} outputs, counted from 0"
            )
        output = recorded.outputs[index]
        if (output.layout.size, output.layout.dtype) != (tuple(tensor.shape), tensor.dtype):
            raise ValueError(
                f"torch_neuronx.trace: input_output_aliases: output {index} is {output.layout.dtype}"
                f"{[*output.layout.size]}, its state is {tensor.dtype}{[*tensor.shape]}; give both the "
                "same shape and type"
            )
        states[index] = recorded.states[id(tensor)]
    numbers = {index: number for number, index in enumerate(i for i in range(len(recorded.outputs)) if i not in states)}

    def pruned(value: Any) -> Any:
        if isinstance(value, Mapping):
            kept = {key: pruned(item) for key, item in value.items()}
            return {key: item for key, item in kept.items() if item is not None}
        if isinstance(value, (list, tuple)):
            items = [item for item in map(pruned, value) if item is not None]
            return items if isinstance(value, list) else tuple(items)
        return numbers.get(value)

    result = pruned(recorded.result)
    if isinstance(recorded.result, tuple) and len(result) == 1:
        result = result[0]
    return result, states


def _flags_of(compiler_args: str | Sequence[str] | None) -> CompilerFlags:
    """Returns the flags of a traced model: `compiler_args`, and the flags of NEURON_CC_FLAGS that concern the cache."""
    general = executor().flags
    given = parse_compiler_flags(compiler_args or "", "compiler_args")
    return dataclasses.replace(
        given,
        cache_dir=given.cache_dir or general.cache_dir,
        no_cache=given.no_cache or general.no_cache,
        retry_failed_compilation=given.retry_failed_compilation or general.retry_failed_compilation,
    )


def _write_workdir(directory: Path, traced: TracedModel, recorded: RecordedFunction) -> None:
    """Writes the recorded graph, the compiled graph and the flags, under the names of neuronx-cc's work directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.hlo.pb").write_text(graph_text(recorded.graph, recorded.alive))
    (directory / "graph.neff").write_bytes(traced.compiled.to_json())
    command = ("neuronx-cc", "compile", "--framework=XLA", *traced.flags.passed_on)
    (directory / "command.txt").write_text(" ".join(command) + "\n")
