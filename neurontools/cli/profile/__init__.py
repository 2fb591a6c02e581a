"""`neuron-profile`: shows, compares and captures profiles of training runs."""
