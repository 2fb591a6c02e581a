"""Checks of arguments that torch's meta kernels accept, although its CPU kernels refuse them.

A call that fails a check is not recorded. The CPU kernel then runs at once, and raises its error at the line of the
script. Without a check, the error would come when the graph is executed, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor


class ArgumentsRefused(RuntimeError):
    """The CPU kernel probably refuses these arguments, so the call must run eagerly."""


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise ArgumentsRefused


def check_linear(value: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ArgumentsRefused unless `linear` accepts these tensors."""
    _require(value.dtype is weight.dtype and value.dim() > 0 and weight.dim() == 2)
    _require(value.shape[-1] == weight.shape[1])
    _require(bias is None or bias.numel() == 1 or (bias.dim() == 1 and bias.shape[0] == weight.shape[0]))


def check_layer_norm(value: Tensor, shape: Sequence[int], *parameters: Tensor | None) -> None:
    """Raises ArgumentsRefused unless `native_layer_norm` accepts these arguments."""
    _require(len(shape) > 0 and list(value.shape[-len(shape) :]) == list(shape))
    _require(all(p is None or list(p.shape) == list(shape) for p in parameters))


def check_group_norm(value: Tensor, channels: int, groups: int, *parameters: Tensor | None) -> None:
    """Raises ArgumentsRefused unless `native_group_norm` accepts these arguments."""
    _require(groups > 0 and channels % groups == 0 and value.dim() > 1 and value.shape[1] == channels)
    _require(all(p is None or list(p.shape) == [channels] for p in parameters))


def _check_convolution(
    _value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    groups: int,
    *_rest: Any,
) -> None:
    _require(groups > 0 and weight.shape[0] % groups == 0)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    _require(bias is None or list(bias.shape) == [channels])


def _check_softmax(value: Tensor, dim: int, *_rest: Any) -> None:
    _require(-max(1, value.dim()) <= dim < max(1, value.dim()))


def _check_index_select(_value: Tensor, _dim: int, index: Tensor, *_rest: Any) -> None:
    _require(index.dim() <= 1)


def _check_index_put(value: Tensor, indices: Sequence[Tensor | None], values: Tensor, *_rest: Any) -> None:
    masks = {n for n, index in enumerate(indices) if index is not None and index.dtype in (torch.bool, torch.uint8)}
    if masks:  # how many elements a mask selects is known only on execution; its shape is known now
        dim = 0
        for number, index in enumerate(indices):
            if number in masks and index is not None:
                _require(index.shape == value.shape[dim : dim + index.dim()])
                dim += index.dim()
            else:
                dim += 1
        return
    meta = [None if index is None else index.to("meta") for index in indices]
    selected = torch.ops.aten.index.Tensor(value, meta).shape
    _require(torch.broadcast_shapes(selected, values.shape) == selected)


def _check_index_add(value: Tensor, dim: int, index: Tensor, source: Tensor, *_rest: Any) -> None:
    if not value.dim() or not source.dim():
        return  # torch treats a tensor without dimensions as a vector of one element
    _require(index.dim() <= 1 and -value.dim() <= dim < value.dim())
    shape = list(value.shape)
    shape[dim] = index.numel()
    _require(list(source.shape) == shape)


_CHECKS: dict[str, Callable[..., None]] = {
    "aten::convolution": _check_convolution,
    "aten::_softmax": _check_softmax,
    "aten::_log_softmax": _check_softmax,
    "aten::index_select": _check_index_select,
    **dict.fromkeys(("aten::index_add", "aten::index_add_"), _check_index_add),
    **dict.fromkeys(("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"), _check_index_put),
}


def checked_meta_call(name: str, meta_call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the meta kernel of an operator, preceded by the operator's check if there is one."""
    check = _CHECKS.get(name)
    if check is None:
        return meta_call

    def call(*arguments: Any, **keywords: Any) -> Any:
        check(*arguments)
        return meta_call(*arguments, **keywords)

    return call
