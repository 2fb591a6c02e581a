"""`neuron-healthcheck`: one verdict on the host, in the form of whoever acts on it."""
