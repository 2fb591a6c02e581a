"""`neuron-run`: runs training scripts on simulated NeuronCores, and `neuron_parallel_compile`."""
