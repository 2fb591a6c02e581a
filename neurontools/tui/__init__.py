"""Dashboard of neuron-top; the only package that imports Textual."""
