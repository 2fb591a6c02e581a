"""The command neuron-fault."""
