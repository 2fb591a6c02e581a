"""Text, JSON and HTML output of the tools. Pages are pure functions of their input: no I/O, clock or environment."""
