"""Callbacks for training frameworks. They report a training to the daemon, also on real NeuronCores."""
