"""neuronx_distributed.utils on simulated NeuronCores."""
