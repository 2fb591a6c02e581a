"""`neuron-doctor`: what is installed and found on this host, and what is wrong with it."""
