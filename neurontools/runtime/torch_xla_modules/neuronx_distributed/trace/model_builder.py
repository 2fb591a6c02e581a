"""neuronx_distributed.ModelBuilder: traces a module for several input shapes, with one graph for all ranks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch_xla.core.xla_model as xm
from torch import Tensor, nn

from neurontools.runtime.inference.spmd_model import (
    ExampleInputs,
    SpmdModel,
    bind_inputs,
    find_states,
    trace_shape,
)
from neurontools.runtime.launch.import_hook import UnsupportedName, unsupported_message

from ..parallel_layers import parallel_state
from ..parallel_layers.utils import shard_state_dict

NxDModel = SpmdModel
BaseModelInstance = UnsupportedName(f"{__name__}.BaseModelInstance")
_FILE = "tp{}_sharded_checkpoint.safetensors"


class NxDParallelState:
    """Makes this process rank `rank` of `world_size` ranks during the block, to trace and to shard models."""

    def __init__(self, world_size: int = 1, rank: int = 0, tensor_model_parallel_size: int = 1, **others: Any) -> None:
        for name, size in others.items():
            if name != "lnc_size" and size not in (None, 1):
                raise NotImplementedError(
                    f"NxDParallelState({name}={size}) is not part of the simulated runtime; use tensor parallelism"
                )
        self._arguments = (rank, world_size, tensor_model_parallel_size)

    def __enter__(self) -> NxDParallelState:
        self._context = parallel_state.traced_as(*self._arguments)
        self._context.__enter__()
        parallel_state.set_aot_mode(True)
        return self

    def __exit__(self, *error: Any) -> None:
        parallel_state.set_aot_mode(False)
        self._context.__exit__(*error)


class ModelBuilder:
    """Traces `model` for each call of `trace`. Create the model and the builder in an NxDParallelState block."""

    def __init__(
        self, model: nn.Module | None = None, weights_to_skip_layout_optimization: Any = None, **older: Any
    ) -> None:
        """Ignores `weights_to_skip_layout_optimization`: weights keep their layout."""
        del weights_to_skip_layout_optimization
        for name in older:
            raise NotImplementedError(f"{unsupported_message(f'{__name__}.ModelBuilder({name}=…)')}")
        if not isinstance(model, nn.Module):
            raise TypeError(f"ModelBuilder: a {type(model).__name__} can't be traced; pass a module")
        self.model = model
        self.world_size = xm.xrt_world_size()
        self._inputs: dict[str, ExampleInputs] = {}

    def trace(
        self,
        args: Tensor | tuple[Tensor, ...] | None = None,
        kwargs: Mapping[str, Tensor] | None = None,
        tag: str | None = None,
        spmd: bool = True,
    ) -> ModelBuilder:
        """Records the model with example inputs, under a tag. Raises what torch_neuronx.trace raises."""
        if not spmd:
            raise NotImplementedError(
                "ModelBuilder.trace(spmd=False) is not part of the simulated runtime; leave it out"
            )
        inputs = bind_inputs(self.model, args, kwargs)
        find_states(self.model, inputs)
        self._inputs[tag or f"trace_{len(self._inputs)}"] = inputs
        return self

    def compile(
        self,
        priority_model_key: str | None = None,
        compiler_workdir: str | Path | None = None,
        compiler_args: str | Mapping[str, str] | None = None,
        max_workers: int | None = None,
    ) -> SpmdModel:
        """Compiles all traces. `compiler_args` has the flags of all, or a dictionary of flags by tag.

        Ignores `priority_model_key`, as weights keep their layout, and `max_workers`.
        """
        del max_workers
        if not self._inputs:
            raise ValueError("ModelBuilder.compile: there is no trace; call trace() before")
        if priority_model_key is not None and priority_model_key not in self._inputs:
            raise ValueError(f"ModelBuilder.compile: priority_model_key={priority_model_key!r} is no tag of a trace")
        flags = compiler_args if isinstance(compiler_args, Mapping) else dict.fromkeys(self._inputs, compiler_args)
        if missing := self._inputs.keys() - flags.keys():
            raise ValueError(f"ModelBuilder.compile: compiler_args has no flags for {', '.join(sorted(missing))}")
        shapes = {
            tag: trace_shape(
                self.model, inputs, flags[tag], None if compiler_workdir is None else Path(compiler_workdir) / tag
            )
            for tag, inputs in self._inputs.items()
        }
        parameters = next(iter(self._inputs.values())).parameters
        return SpmdModel(self.world_size, parameters, shapes)


def shard_checkpoint(
    checkpoint: Mapping[str, Tensor],
    model: nn.Module,
    start_rank: int | None = None,
    end_rank: int | None = None,
    load_on_device: bool = False,
    serialize_path: str | Path | None = None,
) -> list[dict[str, Tensor]]:
    """Returns the weights of the ranks from `start_rank` to `end_rank`, by default of all ranks, on the CPU.

    With `serialize_path` also writes a file of safetensors for each rank. Ignores `load_on_device`.
    """
    del load_on_device
    size = parallel_state.get_tensor_model_parallel_size()
    names = model.state_dict().keys()
    sharded = []
    for rank in range(start_rank or 0, size if end_rank is None else end_rank + 1):
        shards = shard_state_dict(model, checkpoint, rank, size)
        sharded.append({name: value.contiguous() for name, value in shards.items() if name in names})
        if serialize_path is not None:
            Path(serialize_path).mkdir(parents=True, exist_ok=True)
            importlib.import_module("safetensors.torch").save_file(
                sharded[-1], Path(serialize_path) / _FILE.format(rank)
            )
    return sharded
