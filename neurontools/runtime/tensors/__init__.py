"""Device tensors and where they live: buffers, HBM, NeuronCores, the graph that is pending on each."""
