"""neuronx_distributed.optimizer: ZeRO-1 together with tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

from .parallel_layers import parallel_state
from .parallel_layers.utils import param_is_not_tensor_parallel_duplicate


class NeuronZero1Optimizer(ZeroRedundancyOptimizer):  # type: ignore[misc]
    """Shards the optimizer state among the data-parallel ranks, and clips gradients by the norm over all ranks."""

    def __init__(self, params: Any, optimizer_class: Any, **keywords: Any) -> None:
        if parallel_state.model_parallel_is_initialized():
            keywords.setdefault("sharding_groups", parallel_state.get_data_parallel_group(as_list=True))
            keywords.setdefault("grad_norm_groups", parallel_state.get_tensor_model_parallel_group(as_list=True))
        super().__init__(params, optimizer_class, **keywords)

    def _counts(self, parameter: torch.Tensor) -> bool:
        """Whether this rank includes a parameter in the gradient norm. One rank includes each replicated parameter."""
        return not parallel_state.model_parallel_is_initialized() or param_is_not_tensor_parallel_duplicate(parameter)
