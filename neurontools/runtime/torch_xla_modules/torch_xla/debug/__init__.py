"""torch_xla.debug on simulated NeuronCores."""

from . import metrics as metrics
