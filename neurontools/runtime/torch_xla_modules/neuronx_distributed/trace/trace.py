"""neuronx_distributed.trace.trace: traces the shards of a tensor-parallel model, saves and loads them.

All ranks are traced and executed in this process, each on a core of its own. Source: "Inference with Tensor
Parallelism" and "API Reference Guide" of neuronx-distributed in the AWS Neuron documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neurontools.runtime.inference.buckets import BucketModelConfig
from neurontools.runtime.inference.parallel_model import ParallelModel, load_ranks, save_ranks, trace_rank

from ..parallel_layers.parallel_state import traced_as
from ..parallel_layers.utils import shard_state_dict

TensorParallelNeuronModel = ParallelModel
parallel_model_save = save_ranks
parallel_model_load = load_ranks


def parallel_model_trace(
    func: Callable[..., Any],
    example_inputs: Any,
    states: None = None,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | list[str] | None = None,
    inline_weights_to_neff: bool = True,
    bucket_config: BucketModelConfig | None = None,
    tp_degree: int = 1,
    max_parallel_compilations: int | None = None,
    spmd_mode: bool = False,
    checkpoint_loader_callable: Callable[[], Mapping[str, Tensor]] | None = None,
    force_custom_init_on_device: bool = False,
    serialization_path: str | Path | None = None,
) -> ParallelModel:
    """Traces the model that `func` makes for each of `tp_degree` ranks. Returns a module that takes CPU tensors.

    `func` returns a module, or a module and its `input_output_aliases`. It runs once for each rank, and draws the same
    random numbers each time. With `spmd_mode`, each rank gets its shards of what `checkpoint_loader_callable` returns.
    The ranks are traced one after the other, so `max_parallel_compilations` has no effect, like
    `force_custom_init_on_device`. Raises what torch_neuronx.trace raises.
    """
    del max_parallel_compilations, force_custom_init_on_device
    if states is not None:
        raise NotImplementedError(
            "parallel_model_trace(states=…) is not part of the simulated runtime; return input_output_aliases from func"
        )
    _check_options(bucket_config, inline_weights_to_neff, spmd_mode, checkpoint_loader_callable, serialization_path)
    checkpoint = checkpoint_loader_callable() if spmd_mode and checkpoint_loader_callable is not None else None
    random_state = torch.get_rng_state()
    ranks = []
    for rank in range(tp_degree):
        torch.set_rng_state(random_state)
        with traced_as(rank, tp_degree, tp_degree):
            ranks.append(
                trace_rank(
                    func if checkpoint is None else _with_weights(func, checkpoint, rank, tp_degree),
                    example_inputs,
                    bucket_config=bucket_config,
                    compiler_workdir=None if compiler_workdir is None else Path(compiler_workdir) / f"_tp{rank}",
                    compiler_args=compiler_args,
                    has_separate_weights=not inline_weights_to_neff,
                )
            )
    model = ParallelModel(ranks)
    if serialization_path is not None:
        save_ranks(model, serialization_path)
    return model


def _check_options(
    bucket_config: Any, inline_weights_to_neff: bool, spmd_mode: bool, checkpoint_loader: Any, serialization_path: Any
) -> None:
    if inline_weights_to_neff and (spmd_mode or bucket_config is not None):
        name = "spmd_mode" if spmd_mode else "bucket_config"
        raise ValueError(f"parallel_model_trace: {name} needs inline_weights_to_neff=False")
    if spmd_mode and checkpoint_loader is None:
        raise ValueError("parallel_model_trace: spmd_mode needs checkpoint_loader_callable, which returns the weights")
    if serialization_path is not None and not spmd_mode:
        raise ValueError("parallel_model_trace: serialization_path needs spmd_mode=True; or call parallel_model_save")


def _with_weights(
    func: Callable[..., Any], checkpoint: Mapping[str, Tensor], rank: int, size: int
) -> Callable[..., Any]:
    """Returns `func` with a model that has this rank's shards of a checkpoint."""

    def make(**keywords: Any) -> Any:
        made = func(**keywords)
        model: nn.Module = made[0] if isinstance(made, tuple) else made
        model.load_state_dict(shard_state_dict(model, checkpoint, rank, size), strict=False)
        return made

    return make
