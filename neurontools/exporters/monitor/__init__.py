"""The records of neuron-monitor: what they hold, as a pure function of two snapshots and a configuration."""
