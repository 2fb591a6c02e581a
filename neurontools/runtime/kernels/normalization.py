"""Normalisation: what the CPU's kernels return where torch's meta kernels announce something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, operators
from neurontools.runtime.tensors.core import Tensor

_REDUCED = (torch.bfloat16, torch.float16)


def _statistics_dtype(value: Tensor, parameters: tuple[Tensor | None, ...]) -> torch.dtype:
    """float32 where a reduced input meets float32 parameters, else the type of the input."""
    mixed = value.dtype in _REDUCED and any(p is not None and p.dtype is torch.float32 for p in parameters)
    return torch.float32 if mixed else value.dtype


def _layer_norm(
    value: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _statistics_dtype(value, (weight, bias))
    outer = value.dim() - len(shape)
    statistics = [*value.shape[:outer], *[1] * len(shape)]
    result = torch.empty_like(value, memory_format=torch.contiguous_format)
    return result, value.new_empty(statistics, dtype=dtype), value.new_empty(statistics, dtype=dtype)


def _group_norm(
    value: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, _c: int, _hxw: int, group: int, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _statistics_dtype(value, (weight, bias))
    return torch.empty_like(value), value.new_empty([n, group], dtype=dtype), value.new_empty([n, group], dtype=dtype)


def _like_probe(op: Any) -> Callable[..., Any]:
    """Asks the CPU's own kernel, with a batch of two and single pixels: its statistics do not depend on the rest."""

    def announced(value: Tensor, *arguments: Any, **keywords: Any) -> Any:
        def small(part: Any) -> Any:
            return torch.ones(part.shape, dtype=part.dtype, device="cpu") if isinstance(part, Tensor) else part

        probe = torch.ones([2, *value.shape[1:2], *[1] * (value.dim() - 2)], dtype=value.dtype, device="cpu")
        results = op(probe, *map(small, arguments), **{name: small(part) for name, part in keywords.items()})
        return torch.empty_like(value), *(value.new_empty(r.shape, dtype=r.dtype) for r in results[1:])

    return announced


def kernels() -> dict[str, Any]:
    """The kernels by operator."""
    listed = [
        DeviceOperator(find_overload("aten::native_layer_norm"), meta_call=_layer_norm),
        DeviceOperator(find_overload("aten::native_group_norm"), meta_call=_group_norm),
    ]
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_batch_norm_with_update",
    ):
        op = find_overload("aten::" + name)
        # native_batch_norm's schema does not say that the running statistics change.
        writes = ("running_mean", "running_var") if name == "native_batch_norm" else ()
        listed.append(DeviceOperator(op, meta_call=_like_probe(op), writes=writes))
    return {operator.name: recording_kernel(operators.add(operator)) for operator in listed}
