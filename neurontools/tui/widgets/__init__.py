"""The widgets of neuron-top."""
