"""`neuron-diag`: tests devices and links before a job."""
