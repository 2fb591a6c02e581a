"""`neuron-ls`: lists the Neuron devices of hosts and the processes on them."""
