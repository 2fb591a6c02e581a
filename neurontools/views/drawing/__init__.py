"""Drawing primitives of neuron-top's pages: lines, styles, glyphs, bars, plots, and the render context."""
