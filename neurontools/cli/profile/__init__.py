"""`neuron-profile`."""
