"""neuronx_distributed.parallel_layers.utils: shards of tensors, and the attributes of sharded parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..utils import move_model_to_device as move_model_to_device


def refuse_keywords(caller: str, unknown: Iterable[str]) -> None:
    """Raises NotImplementedError that names the first unsupported keyword, if there is one."""
    for name in unknown:
        raise NotImplementedError(f"{caller}({name}=…) is not part of the simulated runtime; leave it out")


def divide(numerator: int, denominator: int) -> int:
    """Returns the quotient. Raises ValueError if the division has a remainder."""
    if numerator % denominator:
        raise ValueError(f"{numerator} can't be divided among {denominator} ranks; use a multiple")
    return numerator // denominator


def split_tensor_along_last_dim(
    tensor: Tensor, num_partitions: int, contiguous_split_chunks: bool = False
) -> tuple[Tensor, ...]:
    parts = torch.split(tensor, divide(tensor.shape[-1], num_partitions), -1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


def set_tensor_model_parallel_attributes(
    tensor: Tensor, is_parallel: bool, dim: int, stride: int = 1, num_partitions: int | None = None
) -> None:
    """Marks a parameter as sharded along a dimension among `num_partitions` ranks, or as replicated."""
    marked: Any = tensor
    marked.tensor_model_parallel, marked.partition_dim, marked.partition_stride = is_parallel, dim, stride
    marked.num_partitions = num_partitions


def get_padding_length(numerator: int, denominator: int) -> int:
    """Returns the number to add to the numerator, so that the division has no remainder."""
    return -numerator % denominator


def param_is_not_tensor_parallel_duplicate(parameter: Tensor) -> bool:
    """Whether the parameter is sharded, or is the replica of the first tensor-parallel rank."""
    from . import parallel_state

    is_part = getattr(parameter, "tensor_model_parallel", False)
    return is_part or parallel_state.get_tensor_model_parallel_rank() == 0


def shard_state_dict(model: nn.Module, state: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """Returns a state dictionary with the shards that one of `size` ranks has of the full parameters.

    First calls `preshard_hook(state, name of the weight)` of the modules that have one, which may pad or replace full
    tensors. Raises ValueError if a parameter can't be sharded among the ranks.
    """
    sharded = dict(state)
    for path, module in model.named_modules():
        hook = getattr(module, "preshard_hook", None)
        name = f"{path}.weight" if path else "weight"
        if hook is not None and (name in sharded or not hasattr(module, "weight")):
            hook(sharded, name)
    for name, parameter in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if name in sharded and getattr(parameter, "tensor_model_parallel", False):
            marked: Any = parameter
            count = marked.num_partitions or size
            length = divide(divide(sharded[name].shape[marked.partition_dim], count), marked.partition_stride)
            parts = sharded[name].split(length, marked.partition_dim)
            sharded[name] = torch.cat(parts[rank % count :: count], marked.partition_dim)
    return sharded
