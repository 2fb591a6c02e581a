"""The document of neuron-top, as JSON and CSV: what its pages show, as data."""
