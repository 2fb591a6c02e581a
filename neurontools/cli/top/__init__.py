"""`neuron-top`: the dashboard, its text and JSON output, recordings and browser pages."""
