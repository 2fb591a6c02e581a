"""nn.Linear as one forward and one backward operator, whose results equal the CPU's bit by bit.

On the CPU, `linear` consists of transposes and matrix products, each with an autograd node. These kernels skip the
operators that change no bytes. The matrix products get the same operands as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels.argument_checks import check_linear
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, operators
from neurontools.runtime.tensors.buffers import Tensor

_linear = torch.ops.aten.linear.default
_cpu_linear: Any = torch.nn.functional.linear
_functions: Any = torch._C._VariableFunctions
_addmm: Callable[[Tensor, Tensor, Tensor], Tensor] = _functions.addmm
_mm: Callable[[Tensor, Tensor], Tensor] = _functions.mm


def _forward(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # This function folds the leading dimensions, as torch's matmul does if the weight requires a gradient.
    # Gradients are off in a kernel, so matmul itself would decide by the strides.
    if value.dim() < 3 or (bias is not None and value.is_contiguous()):
        result: Tensor = _cpu_linear(value, weight, bias)
        return result
    result = value.reshape(-1, value.shape[-1]).mm(weight.t()).view(*value.shape[:-1], weight.shape[0])
    return result if bias is None else result.add_(bias)


def _meta_forward(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    check_linear(value, weight, bias)
    return value.new_empty([*value.shape[:-1], weight.shape[0]])


def _backward(
    value: Tensor, gradient: Tensor, weight: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if value.is_complex():
        value, weight = value.conj(), weight.conj()
    elif value.dim() == 1:
        return (
            weight.t().mv(gradient) if mask[0] else None,
            gradient.outer(value) if mask[1] else None,
            gradient.clone() if mask[2] else None,
        )
    rows, flat = gradient, value
    is_matrix = gradient.dim() == 2
    if not is_matrix:  # a matrix needs no reshape, which costs as much as a small matrix product
        rows, flat = gradient.reshape(-1, gradient.shape[-1]), value.reshape(-1, value.shape[-1])
    of_value = _value_gradient(rows, flat, weight) if mask[0] else None
    return (
        of_value if is_matrix or of_value is None else of_value.view(value.shape),
        _weight_gradient(rows, flat, weight) if mask[1] else None,
        rows.sum(0) if mask[2] else None,
    )


def _value_gradient(rows: Tensor, flat: Tensor, weight: Tensor) -> Tensor:
    """Computes the input gradient as torch's mm_mat1_grad does: by the transposed product for a column-major input."""
    if flat.stride(0) == 1 and flat.stride(1) == flat.shape[0]:
        return weight.t().mm(rows.t()).t().contiguous()
    return rows.mm(weight)


def _weight_gradient(rows: Tensor, flat: Tensor, weight: Tensor) -> Tensor:
    """Computes the weight gradient as torch's mm_mat2_grad does for the transposed weight."""
    if weight.stride(1) == 1 and weight.stride(0) == weight.shape[1]:
        return rows.t().mm(flat)
    return flat.t().mm(rows).t().contiguous()


def _plain_forward(value: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _addmm(bias, value, weight.t())


_PLAIN_BACKWARD: dict[tuple[bool, ...], Callable[..., Any]] = {
    (True, True, True): lambda value, gradient, weight, _mask: (
        _mm(gradient, weight),
        _mm(gradient.t(), value),
        gradient.sum(0),
    ),
    (False, True, True): lambda value, gradient, _weight, _mask: (None, _mm(gradient.t(), value), gradient.sum(0)),
}
"""Functions for row-major matrices, by which of the three gradients are asked for."""


def _is_plain(layout: TensorLayout | None) -> bool:
    """Returns whether a layout is a row-major real matrix, both sizes above 1: strides are ambiguous at size 1."""
    return (
        layout is not None
        and layout.ndim == 2
        and min(layout.size) > 1
        and layout.stride == (layout.size[1], 1)
        and not layout.device_dtype.is_complex
    )


def _meta_backward(
    value: Tensor, _gradient: Tensor, weight: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return (
        value.new_empty(value.shape) if mask[0] else None,
        value.new_empty(weight.shape) if mask[1] else None,
        value.new_empty(weight.shape[:1]) if mask[2] else None,
    )


class _Linear(DeviceOperator):
    """A linear operator that counts the FLOPs of its matrix products by torch's formula.

    The subclasses choose a faster function for row-major matrices, once per program. A check of the strides in each
    execution would cost as much as a small matrix product.
    """

    def flop_count(self, arguments: list[Any], keywords: dict[str, Any], result: Any) -> int:
        del keywords
        value = arguments[0]
        weight = arguments[1] if isinstance(result, Tensor) else arguments[2]
        products = 1 if isinstance(result, Tensor) else sum(map(bool, arguments[3][:2]))
        return int(2 * value.numel() * weight.shape[0] * products)


class _Forward(_Linear):
    def call_for(self, arguments: Sequence[Any], layouts: Sequence[TensorLayout | None]) -> Callable[..., Any]:
        has_bias = len(arguments) == 3 and layouts[2] is not None
        return _plain_forward if has_bias and _is_plain(layouts[0]) and _is_plain(layouts[1]) else self.call


class _Backward(_Linear):
    def call_for(self, arguments: Sequence[Any], layouts: Sequence[TensorLayout | None]) -> Callable[..., Any]:
        value, gradient, weight = layouts[:3]
        if not (_is_plain(value) and _is_plain(weight)) or gradient is None or gradient.ndim != 2:
            return self.call
        return _PLAIN_BACKWARD.get(tuple(arguments[3]), self.call)


def linear_kernels() -> dict[str, Any]:
    forward = _Forward(_linear, call=_forward, meta_call=_meta_forward)
    backward = _Backward(find_overload("aten::linear_backward"), call=_backward, meta_call=_meta_backward)
    forward.matmul = backward.matmul = True
    return {each.name: recording_kernel(operators.add(each)) for each in (forward, backward)}
