"""Starts scripts on simulated NeuronCores and connects the parts of the runtime."""
