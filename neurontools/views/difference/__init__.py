"""What differs between two moments of a host, or between two recordings: `neuron-top --diff`."""
