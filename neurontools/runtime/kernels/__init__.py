"""Kernels of the torch device, one module per family of operators that recording alone does not cover."""
