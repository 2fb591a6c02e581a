"""neuronx_distributed.parallel_layers.loss_functions: the cross entropy of sharded logits."""

from __future__ import annotations

from typing import Any

import torch_xla.core.xla_model as xm
from torch import Tensor

from . import parallel_state
from .mappings import reduce_from_tensor_model_parallel_region
from .utils import refuse_keywords


def parallel_cross_entropy(
    vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0, **unknown: Any
) -> Tensor:
    """Returns the cross entropy of each target. Each rank passes the logits of its shard of the vocabulary."""
    refuse_keywords("parallel_cross_entropy", unknown)
    logits = vocab_parallel_logits
    groups = parallel_state.get_tensor_model_parallel_replica_groups()
    largest = xm.all_reduce(xm.REDUCE_MAX, logits.detach().amax(-1), groups=groups)
    shifted = logits - largest.unsqueeze(-1)
    words = logits.shape[-1]
    own = target - parallel_state.get_tensor_model_parallel_rank() * words
    is_elsewhere = (own < 0) | (own >= words)
    found = shifted.gather(-1, own.masked_fill(is_elsewhere, 0).unsqueeze(-1)).squeeze(-1)
    expected = reduce_from_tensor_model_parallel_region(found.masked_fill(is_elsewhere, 0.0))
    normalizer = reduce_from_tensor_model_parallel_region(shifted.exp().sum(-1)).log()
    loss = normalizer - expected
    if not label_smoothing:
        return loss
    count = words * parallel_state.get_tensor_model_parallel_size()
    mean = reduce_from_tensor_model_parallel_region(shifted.sum(-1)) / count
    return (1 - label_smoothing) * loss + label_smoothing * (normalizer - mean)
