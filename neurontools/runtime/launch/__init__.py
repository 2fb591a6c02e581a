"""Starts a script on simulated NeuronCores; puts the parts of the runtime together."""
