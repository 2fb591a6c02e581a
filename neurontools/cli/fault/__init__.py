"""`neuron-fault`: injects faults into simulated devices."""
