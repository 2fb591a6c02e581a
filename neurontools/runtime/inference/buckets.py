"""`torch_neuronx.bucket_model_trace`: one module with a traced model for each of several input shapes.

Source: "Autobucketing" in "PyTorch NeuronX Tracing API for Inference" of the AWS Neuron documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neurontools.runtime.inference.script_module import build_bucket_module, model_of, neuron_modules
from neurontools.runtime.inference.structure import as_arguments
from neurontools.runtime.inference.tracing import trace_model


class BucketModelConfig:
    """How a bucket is chosen. `bucket_kernel` returns a TorchScript function.

    This function takes the list of input tensors, and returns the list for the model and a tensor with the index of the
    bucket. `func_kwargs` are keyword arguments for the function that makes the models: one dictionary, or one for each
    bucket. Shared state buffers are not supported.
    """

    def __init__(
        self,
        bucket_kernel: Callable[[], Any],
        *_: Any,
        shared_state_buffer: Any = None,
        shared_state_buffer_preprocessor: Any = None,
        func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if shared_state_buffer is not None or shared_state_buffer_preprocessor is not None:
            raise NotImplementedError(
                "torch_neuronx.BucketModelConfig: shared_state_buffer is not part of the simulated runtime; use "
                "input_output_aliases of torch_neuronx.trace for each shape"
            )
        self.bucket_kernel = bucket_kernel
        self.func_kwargs = func_kwargs

    def keywords_of(self, bucket: int, count: int) -> Mapping[str, Any]:
        """Returns the keyword arguments for one of `count` buckets. Raises ValueError for a list of another length."""
        given = self.func_kwargs or {}
        if isinstance(given, Mapping):
            return given
        if len(given) != count:
            raise ValueError(
                f"BucketModelConfig: func_kwargs has {len(given)} dictionaries for {count} buckets; give one for each"
            )
        return given[bucket]


def bucket_model_trace(
    func: Callable[..., Any],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
) -> torch.jit.ScriptModule:
    """Traces a model for each of the `example_inputs`, and returns one module that chooses a model by its inputs.

    `func` returns a model and its `input_output_aliases`. Raises what `trace` raises, TypeError if `func` is a module
    or returns something else, and ValueError if the models return different structures.
    """
    module = trace_buckets(
        func, example_inputs, bucket_config, compiler_workdir=compiler_workdir, compiler_args=compiler_args
    )
    for part in neuron_modules(module):
        model_of(part.handle).load()
    return module


def trace_buckets(
    func: Callable[..., Any],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    *,
    compiler_workdir: str | Path | None,
    compiler_args: str | Sequence[str] | None,
    has_separate_weights: bool = False,
) -> torch.jit.ScriptModule:
    """Does `bucket_model_trace`, and leaves the models on no core."""
    models = []
    results = []
    for bucket, inputs in enumerate(example_inputs):
        keywords = bucket_config.keywords_of(bucket, len(example_inputs))
        made = func if isinstance(func, nn.Module) else func(**keywords)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise TypeError(
                f"torch_neuronx.bucket_model_trace: {type(made).__name__} is no pair of a model and its "
                "input_output_aliases; pass a function that returns both, such as lambda: (model, {})"
            )
        module, aliases = made
        workdir = None if compiler_workdir is None else Path(compiler_workdir) / f"bucket_{bucket}"
        model, result = trace_model(
            module,
            as_arguments(inputs),
            input_output_aliases=aliases,
            compiler_workdir=workdir,
            compiler_args=compiler_args,
            has_separate_weights=has_separate_weights,
        )
        models.append(model)
        results.append(result)
    if any(result != results[0] for result in results):
        raise ValueError(
            "torch_neuronx.bucket_model_trace: the models return different structures; return the same number of "
            "tensors for each of the example inputs"
        )
    return build_bucket_module(models, bucket_config.bucket_kernel(), as_arguments(example_inputs[0]), results[0])
