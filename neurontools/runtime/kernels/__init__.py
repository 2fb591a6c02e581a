"""Kernels of the device, one module per family of operators that needs more than recording."""
