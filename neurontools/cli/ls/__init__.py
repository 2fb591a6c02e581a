"""`neuron-ls`."""
