"""Kernels for attention, dropout and normalization, and for operators without a usable meta kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from neurontools.runtime.capture.recorder import recording_kernel
from neurontools.runtime.kernels.argument_checks import check_group_norm, check_layer_norm
from neurontools.runtime.operators.lru_cache import LRUCache
from neurontools.runtime.operators.operator import DeviceOperator, find_overload, map_tensors, operators
from neurontools.runtime.tensors.buffers import Tensor

_FLASH = 1
_choices: LRUCache[tuple[Any, ...], int] = LRUCache(512)
_sdpa = torch.ops.aten.scaled_dot_product_attention.default
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Implements aten::scaled_dot_product_attention with the kernel that torch chooses on the CPU."""
    choice = 0
    if query.dim() == 4 and not (attn_mask is not None and attn_mask.requires_grad):
        choice = _chosen_kernel(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if choice != _FLASH:
        return _sdpa.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    return _flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _chosen_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> int:
    """Returns the number of the kernel that torch chooses for CPU tensors of these layouts."""
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    signature = (*((t.shape, t.stride(), t.dtype, t.requires_grad) for t in tensors), dropout_p, is_causal, enable_gqa)
    found = _choices.get(signature)
    if found is None:
        probes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").requires_grad_(t.requires_grad)
            for t in tensors
        ]
        choose: Any = torch._fused_sdp_choice
        masks: list[Any] = probes[3:] or [None]
        found = int(choose(*probes[:3], *masks, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa))
        _choices.put(signature, found)
    return found


def native_dropout(
    value: Tensor, p: float, train: bool | None, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the result and the mask. Draws the mask as F.dropout on the CPU, in the dtype of the input."""
    if train is False:
        return value.clone(), torch.ones_like(value, dtype=torch.bool)
    noise = torch.empty_like(value).bernoulli_(1 - p, generator=generator)
    mask = noise.to(torch.bool)
    return value * noise.div_(1 - p) if p < 1 else value * noise, mask


def dropout_kernels() -> dict[str, Any]:
    dropout = DeviceOperator(
        find_overload("aten::native_dropout"),
        call=native_dropout,
        meta_call=lambda value, _p, _train: (torch.empty_like(value), torch.empty_like(value, dtype=torch.bool)),
        random=True,
    )
    dropout.has_generator = True
    backward = DeviceOperator(
        find_overload("aten::native_dropout_backward"),
        call=lambda gradient, mask, scale: gradient * (mask.to(gradient.dtype) * scale),
    )
    return {operator.name: recording_kernel(operators.add(operator)) for operator in (dropout, backward)}


_REDUCED = (torch.bfloat16, torch.float16)


def _statistics_dtype(value: Tensor, parameters: tuple[Tensor | None, ...]) -> torch.dtype:
    """Returns the dtype of mean and variance: float32 for a 16-bit input with float32 parameters, else the input's."""
    mixed = value.dtype in _REDUCED and any(p is not None and p.dtype is torch.float32 for p in parameters)
    return torch.float32 if mixed else value.dtype


def _layer_norm(
    value: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    check_layer_norm(value, shape, weight, bias)
    dtype = _statistics_dtype(value, (weight, bias))
    outer = value.dim() - len(shape)
    statistics = [*value.shape[:outer], *[1] * len(shape)]
    result = torch.empty_like(value, memory_format=torch.contiguous_format)
    return result, value.new_empty(statistics, dtype=dtype), value.new_empty(statistics, dtype=dtype)


def _group_norm(
    value: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, _hxw: int, group: int, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    check_group_norm(value, channels, group, weight, bias)
    dtype = _statistics_dtype(value, (weight, bias))
    return torch.empty_like(value), value.new_empty([n, group], dtype=dtype), value.new_empty([n, group], dtype=dtype)


def _like_probe(op: Any) -> Callable[..., Any]:
    """Returns a meta kernel that runs the CPU kernel on a small input: a batch of two samples of one pixel each.

    The shapes of mean and variance depend only on the channels.
    """

    def announced(value: Tensor, *arguments: Any, **keywords: Any) -> Any:
        def small(part: Tensor) -> Tensor:
            return torch.ones(part.shape, dtype=part.dtype, device="cpu")

        first = torch.ones([2, *value.shape[1:2], *[1] * (value.dim() - 2)], dtype=value.dtype, device="cpu")
        named = {name: map_tensors(part, small) for name, part in keywords.items()}
        results = op(first, *map_tensors(arguments, small), **named)
        result = torch.empty_like(value, memory_format=suggest_memory_format(value))
        return result, *(value.new_empty(r.shape, dtype=r.dtype) for r in results[1:])

    return announced


def normalization_kernels() -> dict[str, Any]:
    listed = [
        DeviceOperator(find_overload("aten::native_layer_norm"), meta_call=_layer_norm),
        DeviceOperator(find_overload("aten::native_group_norm"), meta_call=_group_norm),
    ]
    legit = "_native_batch_norm_legit"
    for name in ("native_batch_norm", legit, f"{legit}.no_stats", "_batch_norm_with_update"):
        op = find_overload("aten::" + name)
        # native_batch_norm updates the running statistics, although its schema does not mark them as written.
        writes = ("running_mean", "running_var") if name == "native_batch_norm" else ()
        listed.append(DeviceOperator(op, meta_call=_like_probe(op), writes=writes))
    return {operator.name: recording_kernel(operators.add(operator)) for operator in listed}


_PROBED_NAMES = """_fft_r2c _fft_c2r _fft_c2c _linalg_svd linalg_eig max_unpool2d _embedding_bag
 _embedding_bag_forward_only mkldnn_rnn_layer mkldnn_rnn_layer_backward
 nonzero_static""".split()


def probe(op: Any) -> Callable[..., Any]:
    """Returns a meta kernel that runs the CPU kernel on zeros and copies the layouts of its results."""

    def announced(*arguments: Any, **keywords: Any) -> Any:
        def like(part: Tensor, where: str) -> Tensor:
            return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=where)

        def zeros(part: Tensor) -> Tensor:
            return like(part, "cpu").zero_()

        named = {name: map_tensors(part, zeros) for name, part in keywords.items()}
        return map_tensors(op(*map_tensors(arguments, zeros), **named), lambda part: like(part, "meta"))

    return announced


def _with_workspace(op: Any) -> Callable[..., Any]:
    """Returns a function that runs oneDNN's layer with gradients enabled.

    Only then, the layer returns its workspace for backward. The script's gradient mode is unknown during an execution.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        with torch.enable_grad():
            return op(*arguments, **keywords)

    return call


def probed_kernels() -> dict[str, Any]:
    """Returns recording kernels by operator name, for operators whose meta kernels run the CPU kernel on zeros."""
    listed = []
    for name in _PROBED_NAMES:
        op = find_overload("aten::" + name)
        call = _with_workspace(op) if name == "mkldnn_rnn_layer" else None
        listed.append(DeviceOperator(op, call=call, meta_call=probe(call or op)))
    return {operator.name: recording_kernel(operators.add(operator)) for operator in listed}
