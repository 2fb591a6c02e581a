"""torch_neuronx.xla_impl and its module ops: the number of models that stay loaded."""

from __future__ import annotations

import importlib


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Does nothing: NEURON_NUM_RECENT_MODELS_TO_KEEP sets the number of models that stay loaded."""


ops = importlib.import_module(f"{__name__}.ops")  # an alias of this module
