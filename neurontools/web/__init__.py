"""The pages of neuron-top in a browser: drawn by the same views, read-only, the same picture for all who look on."""
