"""torch_xla.debug on simulated NeuronCores."""

from __future__ import annotations

from . import metrics as metrics
