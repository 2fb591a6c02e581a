"""torch_xla.distributed on simulated NeuronCores."""
