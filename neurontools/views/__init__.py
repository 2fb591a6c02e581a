"""Text, JSON and HTML output of the tools: pure functions of a Snapshot, without I/O, clock or environment."""
