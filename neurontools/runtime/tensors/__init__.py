"""Device tensors: their buffers and HBM, the NeuronCores, and the pending graph of each core."""
