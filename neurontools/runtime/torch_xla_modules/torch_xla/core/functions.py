"""torch_xla.core.functions: differentiable collectives."""

from __future__ import annotations

from typing import Any

import torch
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


class SyncBatchNorm(torch.nn.Module):
    """Batch normalization by the statistics of all ranks' batches, which must be of one size."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: Tensor) -> Tensor:
        """Normalizes a batch of 2 to 5 dimensions. Raises ValueError if the second is not `num_features`."""
        if not 2 <= batch.ndim <= 5 or batch.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm({self.num_features}) got {[*batch.shape]}; give (N, C) to (N, C, D, H, W)")
        shape = [1, -1, *[1] * (batch.ndim - 2)]
        mean, variance = self.running_mean, self.running_var
        if self.training:
            others, size = [0, *range(2, batch.ndim)], xm.xrt_world_size()
            mean = all_reduce(xm.REDUCE_SUM, batch.mean(others)) / size
            variance = all_reduce(xm.REDUCE_SUM, (batch - mean.view(shape)).square().mean(others)) / size
            count = size * batch.numel() // self.num_features
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / max(1, count - 1)), self.momentum)
        normalized = (batch - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        return normalized * self.weight.view(shape) + self.bias.view(shape)
