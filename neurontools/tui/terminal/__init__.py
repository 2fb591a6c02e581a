"""The terminal of neuron-top: what is typed into it, and what is written to it."""
