"""What the kernel's log says of Neuron devices: the form of its records, and of the line on which node agents go."""
