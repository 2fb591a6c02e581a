"""The screens of neuron-top."""
