"""`neuron-monitor` and `neuron-monitor-prometheus`."""
