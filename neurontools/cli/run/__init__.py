"""`neuron-run`."""
