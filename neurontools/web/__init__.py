"""Pages of neuron-top for browsers: read-only, drawn by the same views, and rendered once for all viewers."""
