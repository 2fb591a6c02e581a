"""torch_neuronx.xla_impl and its module ops: the number of models that stay loaded."""

from __future__ import annotations


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Does nothing: NEURON_NUM_RECENT_MODELS_TO_KEEP sets the number of models that stay loaded."""
    del mode


from . import ops as ops  # noqa: E402  (an alias of this module)
