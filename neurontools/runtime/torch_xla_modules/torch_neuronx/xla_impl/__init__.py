"""torch_neuronx.xla_impl on simulated NeuronCores."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of

from . import ops as ops


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_neuronx.xla_impl.{name}"))
