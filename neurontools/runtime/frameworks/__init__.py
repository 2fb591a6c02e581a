"""Callbacks for training frameworks that report the training to the daemon, on real NeuronCores too."""
