"""torch_xla.core.functions: differentiable collectives."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from . import xla_model as xm


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, reduce_type: str, scale: float, groups: Any) -> Tensor:
        ctx.reduction = reduce_type, scale, groups
        reduced: Tensor = xm.all_reduce(reduce_type, value, scale, groups)
        return reduced

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduce_type, scale, groups = ctx.reduction
        return xm.all_reduce(reduce_type, gradients[0], scale, groups), None, None, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.size = dim, value.shape[dim]
        gathered: Tensor = xm.all_gather(value, dim)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = xm.all_reduce(xm.REDUCE_SUM, gradients[0])
        return total.narrow(ctx.dim, xm.get_ordinal() * ctx.size, ctx.size), None


def all_reduce(reduce_type: str, value: Tensor, scale: float = 1.0, groups: Any = None) -> Tensor:
    """Reduces a tensor over the ranks. Backward reduces the gradient in the same way."""
    result: Tensor = _AllReduce.apply(value, reduce_type, scale, groups)  # type: ignore[no-untyped-call]
    return result


def all_gather(value: Tensor, dim: int = 0) -> Tensor:
    """Concatenates the tensors of all ranks along a dimension; the gradient of each part is summed over the ranks."""
    result: Tensor = _AllGather.apply(value, dim)  # type: ignore[no-untyped-call]
    return result
