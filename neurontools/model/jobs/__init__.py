"""Jobs: which processes work together, and which of them the others wait for."""
