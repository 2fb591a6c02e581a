"""torch_xla.test on simulated NeuronCores."""
