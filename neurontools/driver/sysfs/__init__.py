"""The Neuron driver's sysfs tree: its files as data, reading them and writing trees of the same shape."""
