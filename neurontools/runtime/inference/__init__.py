"""Models traced for inference: recording, saving, placement on cores, and execution with inputs on the host."""
