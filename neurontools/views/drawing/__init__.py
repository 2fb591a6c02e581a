"""Drawing primitives of the pages: lines, styles, glyphs, bars, plots, and the render context."""
