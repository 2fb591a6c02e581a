"""The records of neuron-monitor: pure functions of two snapshots and a configuration."""
