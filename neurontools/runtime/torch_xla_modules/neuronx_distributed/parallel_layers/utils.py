"""neuronx_distributed.parallel_layers.utils: shards of tensors, and the attributes of sharded parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

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


def set_tensor_model_parallel_attributes(tensor: Tensor, is_parallel: bool, dim: int, stride: int = 1) -> None:
    """Marks a parameter as sharded along a dimension, or as replicated."""
    marked: Any = tensor
    marked.tensor_model_parallel, marked.partition_dim, marked.partition_stride = is_parallel, dim, stride


def param_is_not_tensor_parallel_duplicate(parameter: Tensor) -> bool:
    """Whether the parameter is sharded, or is the replica of the first tensor-parallel rank."""
    from . import parallel_state

    is_part = getattr(parameter, "tensor_model_parallel", False)
    return is_part or parallel_state.get_tensor_model_parallel_rank() == 0
