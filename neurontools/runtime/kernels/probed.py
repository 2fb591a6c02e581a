"""Operators whose results lie otherwise than torch's meta kernels announce: the CPU's own kernel is asked.

Once for each way of calling them, with zeros: where the results lie does not depend on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, operators
from neurontools.runtime.tensors.core import Tensor

_NAMES = """_fft_r2c _fft_c2r _fft_c2c _linalg_svd linalg_eig max_unpool2d _embedding_bag
 _embedding_bag_forward_only mkldnn_rnn_layer mkldnn_rnn_layer_backward
 nonzero_static""".split()


def probe(op: Any) -> Callable[..., Any]:
    """A meta kernel that asks a CPU kernel."""

    def announced(*arguments: Any, **keywords: Any) -> Any:
        def zeros(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="cpu").zero_()

        results = op(*map(zeros, arguments), **{name: zeros(part) for name, part in keywords.items()})
        return _on_meta(results)

    return announced


def _on_meta(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_on_meta, result))
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")


def _with_workspace(op: Any) -> Callable[..., Any]:
    """oneDNN's layer keeps a workspace for backward only where gradients are on, which at execution says nothing."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with torch.enable_grad():
            return op(*arguments, **keywords)

    return call


def kernels() -> dict[str, Any]:
    """The kernels by operator."""
    listed = []
    for name in _NAMES:
        op = find_overload("aten::" + name)
        call = _with_workspace(op) if name == "mkldnn_rnn_layer" else None
        listed.append(DeviceOperator(op, call=call, meta_call=probe(call or op)))
    return {operator.name: recording_kernel(operators.add(operator)) for operator in listed}
