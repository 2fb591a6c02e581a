"""torch_xla.utils on simulated NeuronCores."""
