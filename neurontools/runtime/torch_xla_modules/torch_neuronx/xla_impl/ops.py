"""torch_neuronx.xla_impl.ops: which models stay loaded."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message


def set_unload_prior_neuron_models_mode(mode: bool) -> None:
    """Accepted: how many models stay loaded is what NEURON_NUM_RECENT_MODELS_TO_KEEP says."""
    del mode


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_neuronx.xla_impl.ops.{name}"))
