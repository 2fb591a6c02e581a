"""Kernels of the device: one module for each family of operators that needs more than being recorded."""
