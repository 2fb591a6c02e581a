"""Families of neural networks, told apart by the operators of their graphs."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

CAUSAL_ATTENTION = "causal attention"
"""Stands among the operators of a graph that has an attention with `is_causal=True`."""

_DECODER_SIGNS = (
    CAUSAL_ATTENTION,
    "aten::rsqrt",
    "aten::rms_norm",
    "aten::_fused_rms_norm",
    "aten::tril",
    "aten::triu",
)


class ModelFamily(StrEnum):
    """A family of neural networks, whose members reach similar shares of the peak FLOPS."""

    ENCODER = "BERT-like encoder"
    DECODER = "decoder LLM"
    VISION = "vision transformer"
    CONVOLUTION = "convolution"
    OTHER = "other"


def family_of(operators: Collection[str]) -> ModelFamily:
    """Guesses the family of a graph from the names of its operators, such as `aten::convolution`."""
    has_convolution = any("convolution" in name for name in operators)
    has_attention = any("scaled_dot_product" in name for name in operators) or (
        "aten::_softmax" in operators and any("bmm" in name or "matmul" in name for name in operators)
    )
    has_embedding = any(name.startswith("aten::embedding") for name in operators)
    if not has_attention:
        return ModelFamily.CONVOLUTION if has_convolution else ModelFamily.OTHER
    if has_embedding and any(name.startswith(_DECODER_SIGNS) for name in operators):
        return ModelFamily.DECODER
    if has_convolution and not has_embedding:
        return ModelFamily.VISION
    return ModelFamily.ENCODER if has_embedding and not has_convolution else ModelFamily.OTHER
