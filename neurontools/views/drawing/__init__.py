"""What pages are drawn with: glyphs, styles, lines, gauges, plots, and the scene that a page gets."""
