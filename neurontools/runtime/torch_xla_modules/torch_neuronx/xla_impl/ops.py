"""torch_neuronx.xla_impl.ops: which models stay loaded."""

from __future__ import annotations


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Accepted: how many models stay loaded is what NEURON_NUM_RECENT_MODELS_TO_KEEP says."""
    del mode
