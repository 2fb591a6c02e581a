"""Scaled dot product attention: the same choice of kernel as on the CPU, so that results are the same bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.operators.lru_cache import LRUCache
from neurontools.runtime.tensors.core import Tensor

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
    """aten::scaled_dot_product_attention"""
    choice = 0
    if query.dim() == 4 and not (attn_mask is not None and attn_mask.requires_grad):
        choice = _choice(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if choice != _FLASH:
        return _sdpa.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    return _flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> int:
    """What torch would choose for CPU tensors of these layouts."""
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    signature = (*((t.shape, t.stride(), t.dtype, t.requires_grad) for t in tensors), dropout_p, is_causal, enable_gqa)
    found = _choices.get(signature)
    if found is None:
        probes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").requires_grad_(t.requires_grad)
            for t in tensors
        ]
        choose: Any = torch._fused_sdp_choice
        found = int(
            choose(
                *probes[:3],
                probes[3] if mask is not None else None,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        )
        _choices.put(signature, found)
    return found
