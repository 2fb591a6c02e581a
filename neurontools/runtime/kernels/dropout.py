"""Dropout as the CPU computes it, so that results are the same bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, operators
from neurontools.runtime.tensors.core import Tensor


def native_dropout(
    value: Tensor, p: float, train: bool | None, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draws the mask as stock F.dropout does on the CPU: Bernoulli numbers in the type of the input."""
    if train is False:
        return value.clone(), torch.ones_like(value, dtype=torch.bool)
    noise = torch.empty_like(value).bernoulli_(1 - p, generator=generator)
    mask = noise.to(torch.bool)
    return value * noise.div_(1 - p) if p < 1 else value * noise, mask


def _meta_dropout(value: Tensor, _p: float, _train: bool | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(value, dtype=torch.bool)


def _native_dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    return gradient * (mask.to(gradient.dtype) * scale)


def kernels() -> dict[str, Any]:
    """The kernels by operator."""
    dropout = DeviceOperator(
        find_overload("aten::native_dropout"), call=native_dropout, meta_call=_meta_dropout, random=True
    )
    dropout.has_generator = True
    backward = DeviceOperator(find_overload("aten::native_dropout_backward"), call=_native_dropout_backward)
    return {operator.name: recording_kernel(operators.add(operator)) for operator in (dropout, backward)}
