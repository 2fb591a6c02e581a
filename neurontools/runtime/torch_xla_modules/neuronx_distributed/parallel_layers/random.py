"""neuronx_distributed.parallel_layers.random: other random numbers on each rank of a tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch_xla.core.xla_model as xm

from neurontools.runtime.launch.import_hook import unsupported_message

from . import parallel_state

_APART = 2718


def model_parallel_xla_manual_seed(seed: int) -> None:
    """Seeds the device: data-parallel ranks alike, those that share weights each in its own way."""
    xm.set_rng_state(seed + _APART + parallel_state.get_tensor_model_parallel_rank())


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"neuronx_distributed.parallel_layers.random.{name}"))
