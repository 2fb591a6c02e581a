"""The first page of neuron-top: cores, host and memory, as in the original."""
