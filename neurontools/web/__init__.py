"""Read-only browser pages of neuron-top. The terminal's views draw them; all viewers of a page share one rendering."""
