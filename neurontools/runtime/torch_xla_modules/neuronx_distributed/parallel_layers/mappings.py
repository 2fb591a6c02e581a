"""neuronx_distributed.parallel_layers.mappings: the differentiable entries and exits of a tensor-parallel region.

A value that is copied into the region gets the sum of the ranks' gradients. A value that is summed at the exit passes
its gradient to all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_xla.core.xla_model as xm
from torch.autograd import Function

from . import parallel_state
from .utils import divide

Tensor = torch.Tensor


def _reduced_in_place(value: Tensor) -> Tensor:
    if parallel_state.get_tensor_model_parallel_size() > 1:
        xm.all_reduce(xm.REDUCE_SUM, [value], groups=parallel_state.get_tensor_model_parallel_replica_groups())
    return value


def _part(value: Tensor, dim: int) -> Tensor:
    size = parallel_state.get_tensor_model_parallel_size()
    length = divide(value.shape[dim], size)
    return value.narrow(dim, parallel_state.get_tensor_model_parallel_rank() * length, length).clone()


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


class _Copied(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _reduced_in_place(gradients[0].clone())


class _Reduced(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.mark_dirty(value)
        return _reduced_in_place(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class _Scattered(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return _part(value, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _joined(gradients[0], ctx.dim), None


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, is_shared_after: bool) -> Tensor:
        ctx.dim, ctx.is_shared_after = dim, is_shared_after
        return _joined(value, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back = _added_part if ctx.is_shared_after else _part
        return back(gradients[0], ctx.dim), None, None


class _ReduceScattered(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _added_part(value, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _joined(gradients[0], 0)


def copy_to_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Returns the value unchanged. Backward sums its gradient over the tensor-parallel ranks."""
    result: Tensor = _Copied.apply(value)  # type: ignore[no-untyped-call]
    return result


def reduce_from_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Sums a value over the tensor-parallel ranks, in place. Backward passes the gradient on unchanged."""
    result: Tensor = _Reduced.apply(value)  # type: ignore[no-untyped-call]
    return result


def scatter_to_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Returns this rank's shard along the last dimension."""
    result: Tensor = _Scattered.apply(value, -1)  # type: ignore[no-untyped-call]
    return result


def gather_from_tensor_model_parallel_region(value: Tensor) -> Tensor:
    """Concatenates the shards of all ranks along the last dimension."""
    result: Tensor = _Gathered.apply(value, -1, False)  # type: ignore[no-untyped-call]
    return result


def scatter_to_sequence_parallel_region(value: Tensor) -> Tensor:
    """Returns this rank's shard along the first dimension."""
    result: Tensor = _Scattered.apply(value, 0)  # type: ignore[no-untyped-call]
    return result


def gather_from_sequence_parallel_region(value: Tensor, to_model_parallel: bool = True) -> Tensor:
    """Concatenates the shards along the first dimension. Set `to_model_parallel` if a tensor-parallel layer follows."""
    result: Tensor = _Gathered.apply(value, 0, to_model_parallel)  # type: ignore[no-untyped-call]
    return result


def reduce_scatter_to_sequence_parallel_region(value: Tensor) -> Tensor:
    """Sums a value over the ranks and returns this rank's shard along the first dimension."""
    result: Tensor = _ReduceScattered.apply(value)  # type: ignore[no-untyped-call]
    return result
