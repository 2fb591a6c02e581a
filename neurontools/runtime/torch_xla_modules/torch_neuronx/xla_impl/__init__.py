"""torch_neuronx.xla_impl and its module ops: the number of models that stay loaded."""

from __future__ import annotations

import importlib

from neurontools.runtime.launch.import_hook import UnsupportedName


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Does nothing: NEURON_NUM_RECENT_MODELS_TO_KEEP sets the number of models that stay loaded."""


nki_jit = UnsupportedName("torch_neuronx.xla_impl.ops.nki_jit")
ops = importlib.import_module(f"{__name__}.ops")  # an alias of this module
