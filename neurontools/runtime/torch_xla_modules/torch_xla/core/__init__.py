"""torch_xla.core on simulated NeuronCores."""
