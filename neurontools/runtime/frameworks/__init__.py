"""Callbacks by which training frameworks tell the daemon how they go, on real NeuronCores too."""
