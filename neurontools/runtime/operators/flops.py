"""FLOP formulas of ATen operators: those of torch, and some for operators that torch does not count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

Formula = Callable[..., Any]
_aten: Any = torch.ops.aten


def find_flop_formula(op: Any) -> Formula | None:
    """Returns the FLOP formula of an overload. None if the operator multiplies no matrices."""
    packet = op._overloadpacket
    name = packet.__name__
    if name.endswith("_") and op.namespace == "aten":  # in-place: has the FLOPs of the operator without _
        packet = getattr(_aten, name[:-1], packet)
    return flop_registry.get(packet) or _FLOP_FORMULAS.get(packet)


_FLOP_FORMULAS: dict[Any, Formula] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **__: sdpa_flop_count(
        query.shape, key.shape, value.shape
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda gradient, query, key, value, *_, **__: (
        sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)
    ),
    **dict.fromkeys((_aten.mv, _aten.dot, _aten.vdot), lambda matrix, *_, **__: 2 * math.prod(matrix.shape)),
    _aten.addmv: lambda _sum, matrix, *_, **__: 2 * math.prod(matrix.shape),
    _aten.addbmm: lambda _sum, left, right, **_: 2 * math.prod(left.shape) * right.shape[-1],
}
