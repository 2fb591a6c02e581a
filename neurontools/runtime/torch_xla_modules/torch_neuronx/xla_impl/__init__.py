"""torch_neuronx.xla_impl and its module ops: the number of models that stay loaded, and a normalization."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from neurontools.runtime.launch.import_hook import UnsupportedName


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Does nothing: NEURON_NUM_RECENT_MODELS_TO_KEEP sets the number of models that stay loaded."""


class RmsNorm:
    """The operator for RMS normalization of the AWS runtime, computed by operators of torch."""

    @staticmethod
    def apply(hidden_states: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
        """Returns the values divided by their root mean square along a dimension, and multiplied by the weight."""
        return hidden_states * torch.rsqrt(hidden_states.square().mean(dim, keepdim=True) + eps) * weight


nki_jit = UnsupportedName("torch_neuronx.xla_impl.ops.nki_jit")
ops = importlib.import_module(f"{__name__}.ops")  # an alias of this module
