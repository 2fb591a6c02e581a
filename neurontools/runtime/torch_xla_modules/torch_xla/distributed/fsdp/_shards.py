"""Shards of parameters: each rank holds a part of each, and the whole exists while it is used."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional
from torch.autograd import Function

from ...core import xla_model as xm

Tensor = torch.Tensor


class Sharing:
    """Among which ranks parameters are shared out, and in which types they are gathered and their gradients reduced.

    The type of parameters in computations is `compute_dtype`; None leaves it as it is. Gradients are averaged.
    """

    def __init__(
        self, groups: Any, rank: int, size: int, compute_dtype: torch.dtype | None, reduces_in_float32: bool
    ) -> None:
        self.groups = groups
        self.rank = rank
        self.size = size
        self.compute_dtype = compute_dtype
        self.reduces_in_float32 = reduces_in_float32

    def part(self, whole: Tensor, keeps_rows: bool) -> Tensor:
        """This rank's part of a tensor, padded with zeros to the same size on all ranks."""
        rows = _rows(whole, keeps_rows)
        return _padded(rows, self.size).chunk(self.size)[self.rank].clone()

    def gathered(self, part: Tensor, shape: torch.Size, keeps_rows: bool) -> Tensor:
        """The whole of what `part` is this rank's part of; its gradient goes to the parts."""
        result: Tensor = _Gathered.apply(part, self, shape, keeps_rows)  # type: ignore[no-untyped-call]
        return result


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sharing: Sharing, shape: torch.Size, keeps_rows: bool) -> Tensor:
        ctx.made_of = part.dtype, sharing, keeps_rows
        value = part if sharing.compute_dtype is None else part.to(sharing.compute_dtype)
        whole = xm.all_gather(value, groups=sharing.groups)
        rows = shape[0] if keeps_rows and shape else shape.numel()
        result: Tensor = whole.narrow(0, 0, rows).reshape(shape)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dtype, sharing, keeps_rows = ctx.made_of
        rows = _padded(_rows(gradients[0], keeps_rows), sharing.size)
        if sharing.reduces_in_float32:
            rows = rows.float()
        part = xm.reduce_scatter(xm.REDUCE_SUM, rows, 1.0 / sharing.size, 0, sharing.size, groups=sharing.groups)
        return part.to(dtype), None, None, None


def _rows(whole: Tensor, keeps_rows: bool) -> Tensor:
    return whole if keeps_rows and whole.dim() else whole.reshape(-1)


def _padded(rows: Tensor, size: int) -> Tensor:
    missing = -len(rows) % size
    return torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing]) if missing else rows
