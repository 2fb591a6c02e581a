"""torch_xla.debug on simulated NeuronCores."""
