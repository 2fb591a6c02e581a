"""FLOPs of operators: torch's own formulas, and those that it lacks for the CPU's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

Formula = Callable[..., Any]
_aten: Any = torch.ops.aten


def formula(op: Any) -> Formula | None:
    """The formula of an overload, which takes its arguments and `out_val`; None for one that multiplies no matrices."""
    packet = op._overloadpacket
    name = packet.__name__
    if name.endswith("_") and op.namespace == "aten":  # in place: as many as without
        packet = getattr(_aten, name[:-1], packet)
    return flop_registry.get(packet) or _FURTHER.get(packet)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


def _matrix_vector(matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * int(math.prod(matrix.shape))


def _summed_matrix_vector(_sum: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * int(math.prod(matrix.shape))


def _summed_batches(_sum: Any, left: Any, right: Any, **_: Any) -> int:
    return 2 * int(math.prod(left.shape)) * int(right.shape[-1])


_FURTHER: dict[Any, Formula] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten.mv: _matrix_vector,
    _aten.dot: _matrix_vector,
    _aten.vdot: _matrix_vector,
    _aten.addmv: _summed_matrix_vector,
    _aten.addbmm: _summed_batches,
}
