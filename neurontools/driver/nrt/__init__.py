"""The original Neuron runtime as others see it: the environment it reads and the words it says."""
