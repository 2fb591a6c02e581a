"""What pages are drawn with: glyphs, styles, lines, gauges, plots, and the context that a page gets."""
