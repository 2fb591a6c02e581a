"""Registers the kernels of the torch device, and implements the operators that need more than recording."""
