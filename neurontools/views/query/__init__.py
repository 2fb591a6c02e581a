"""What scripts ask neuron-ls: chosen fields as CSV or JSON, free cores, and whether all is well."""
