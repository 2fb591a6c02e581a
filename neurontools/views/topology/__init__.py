"""How devices are linked: the original's picture and the page."""
