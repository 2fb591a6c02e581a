"""neuronx_distributed.parallel_layers.mappings: the differentiable entries and exits of a tensor-parallel region.

A value that is copied into the region gets the sum of the ranks' gradients. A value that is summed at the exit passes
its gradient to all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch_xla.core.xla_model as xm
from torch import Tensor
from torch.autograd import Function

from . import parallel_state
from .utils import divide

Map = Callable[[Tensor], Tensor]


def _reduced_in_place(value: Tensor) -> Tensor:
    if parallel_state.get_tensor_model_parallel_size() > 1:
        xm.all_reduce(xm.REDUCE_SUM, [value], groups=parallel_state.get_tensor_model_parallel_replica_groups())
    return value


def _part(value: Tensor, dim: int) -> Tensor:
    length = divide(value.shape[dim], parallel_state.get_tensor_model_parallel_size())
    return value.narrow(dim, parallel_state.get_tensor_model_parallel_rank() * length, length).clone()


def _own_part(value: Tensor, dim: int) -> Tensor:
    """Returns this rank's part of a value that all ranks have. In a graph for all ranks, a collective selects it."""
    size = parallel_state.get_tensor_model_parallel_size()
    if not parallel_state.get_aot_mode() or size == 1:
        return _part(value, dim)
    divide(value.shape[dim], size)
    groups = parallel_state.get_tensor_model_parallel_replica_groups()
    part: Tensor = xm.reduce_scatter(xm.REDUCE_MAX, value, 1.0, dim % value.dim(), size, groups=groups)
    return part


def own_rank(device: Any) -> Any:
    """Returns this rank in its tensor-parallel group; in a graph for all ranks, as a tensor with one element."""
    if not parallel_state.get_aot_mode():
        return parallel_state.get_tensor_model_parallel_rank()
    return _own_part(torch.arange(parallel_state.get_tensor_model_parallel_size(), device=device), 0)


def _joined(value: Tensor, dim: int) -> Tensor:
    joined: Tensor = xm.all_gather(
        value.contiguous(), dim % value.dim(), groups=parallel_state.get_tensor_model_parallel_replica_groups()
    )
    return joined


def _added_part(value: Tensor, dim: int) -> Tensor:
    groups = parallel_state.get_tensor_model_parallel_replica_groups()
    size = parallel_state.get_tensor_model_parallel_size()
    divide(value.shape[dim], size)
    part: Tensor = xm.reduce_scatter(xm.REDUCE_SUM, value, 1.0, dim, size, groups=groups)
    return part


class _Mapped(Function):
    """Applies one function to a value, and another function to its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, map_value: Map, map_gradient: Map) -> Tensor:
        ctx.map_gradient = map_gradient
        result = map_value(value)
        if result is value:
            ctx.mark_dirty(value)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.map_gradient(gradients[0]), None, None


def _mapped(value: Tensor, map_value: Map, map_gradient: Map) -> Tensor:
    result: Tensor = _Mapped.apply(value, map_value, map_gradient)  # type: ignore[no-untyped-call]
    return result


def copy_to_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Returns the value unchanged. Backward sums its gradient over the tensor-parallel ranks."""
    return _mapped(value, lambda given: given.view_as(given), lambda gradient: _reduced_in_place(gradient.clone()))


def reduce_from_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Sums a value over the tensor-parallel ranks, in place. Backward passes the gradient on unchanged."""
    return _mapped(value, _reduced_in_place, lambda gradient: gradient)


def scatter_to_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Returns this rank's shard along the last dimension."""
    return _mapped(value, partial(_own_part, dim=-1), partial(_joined, dim=-1))


def gather_from_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Concatenates the shards of all ranks along the last dimension."""
    return _mapped(value, partial(_joined, dim=-1), partial(_part, dim=-1))


def scatter_to_sequence_parallel_region(value: Tensor) -> Tensor:
    """Returns this rank's shard along the first dimension."""
    return _mapped(value, partial(_own_part, dim=0), partial(_joined, dim=0))


def gather_from_sequence_parallel_region(value: Tensor, to_model_parallel: bool = True) -> Tensor:
    """Concatenates the shards along the first dimension. Set `to_model_parallel` if a tensor-parallel layer follows."""
    map_gradient = _added_part if to_model_parallel else _part
    return _mapped(value, partial(_joined, dim=0), partial(map_gradient, dim=0))


def reduce_scatter_to_sequence_parallel_region(value: Tensor) -> Tensor:
    """Sums a value over the ranks and returns this rank's shard along the first dimension."""
    return _mapped(value, partial(_added_part, dim=0), partial(_joined, dim=0))
