"""neuronx_distributed.parallel_layers.layer_norm: a layer normalization for sequence parallelism."""

from __future__ import annotations

from typing import Any

from torch import nn


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm; `sequence_parallel_enabled` marks its parameters for allreduce_sequence_parallel_gradients."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        sequence_parallel_enabled: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device=device, dtype=dtype)
        self.sequence_parallel_enabled = sequence_parallel_enabled
        for parameter in self.parameters():
            parameter.sequence_parallel_enabled = sequence_parallel_enabled  # type: ignore[attr-defined]
