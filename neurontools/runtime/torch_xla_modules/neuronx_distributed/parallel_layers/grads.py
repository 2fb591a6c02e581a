"""neuronx_distributed.parallel_layers.grads: reduction and clipping of gradients over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch_xla.core.xla_model as xm
from torch import Tensor
from torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import clip_gradients

from . import parallel_state
from .utils import param_is_not_tensor_parallel_duplicate


def bucket_allreduce_gradients(grads_list: Iterable[Tensor], **hints: Any) -> None:
    """Averages gradients over the data-parallel ranks, in place."""
    listed = list(grads_list)
    size = parallel_state.get_data_parallel_size()
    if listed and size > 1:
        groups = parallel_state.get_data_parallel_replica_groups()
        xm.all_reduce(xm.REDUCE_SUM, [gradient.data for gradient in listed], 1.0 / size, groups)


def allreduce_sequence_parallel_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Sums the gradients of parameters with `sequence_parallel_enabled` over the tensor-parallel ranks.

    Each of these ranks has computed the gradients from its part of the sequence.
    """
    found = [
        parameter.grad.data
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and getattr(parameter, "sequence_parallel_enabled", False)
    ]
    if found and parallel_state.get_tensor_model_parallel_size() > 1:
        xm.all_reduce(xm.REDUCE_SUM, found, groups=parallel_state.get_tensor_model_parallel_replica_groups())


@torch.no_grad()
def clip_grad_norm(parameters: Any, max_norm: float, norm_type: float = 2, **hints: Any) -> Tensor:
    """Scales gradients so that their norm over the whole model is at most `max_norm`. Returns the unscaled norm."""
    listed: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    with_gradient = [parameter for parameter in listed if parameter.grad is not None]
    counted = [parameter.grad for parameter in with_gradient if param_is_not_tensor_parallel_duplicate(parameter)]
    groups = parallel_state.get_tensor_model_parallel_replica_groups()
    gradients = [parameter.grad for parameter in with_gradient]
    norm: Tensor = clip_gradients(gradients, counted, max_norm, norm_type, groups)
    return norm
