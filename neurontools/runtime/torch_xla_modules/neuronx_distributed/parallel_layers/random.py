"""neuronx_distributed.parallel_layers.random: a different seed for each rank of a tensor-parallel group."""

from __future__ import annotations

import torch_xla.core.xla_model as xm

from . import parallel_state

_APART = 2718


def model_parallel_xla_manual_seed(seed: int) -> None:
    """Seeds the device; data-parallel ranks get the same seed, tensor-parallel ranks different ones."""
    xm.set_rng_state(seed + _APART + parallel_state.get_tensor_model_parallel_rank())
