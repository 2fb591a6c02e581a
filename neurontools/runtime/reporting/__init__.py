"""Reports from a training process to the monitor daemon. Pure Python, no torch."""
