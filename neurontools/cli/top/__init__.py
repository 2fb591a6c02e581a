"""`neuron-top`."""
