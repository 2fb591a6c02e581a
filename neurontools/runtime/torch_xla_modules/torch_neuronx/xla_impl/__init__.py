"""torch_neuronx.xla_impl on simulated NeuronCores."""

from __future__ import annotations

from . import ops as ops
