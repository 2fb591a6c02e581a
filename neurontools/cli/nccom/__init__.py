"""`nccom-test`: measures collectives between NeuronCores."""
