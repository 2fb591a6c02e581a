"""Starting a script on simulated NeuronCores: where all parts are put together."""
