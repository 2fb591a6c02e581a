"""What the tools show: pure functions of a Snapshot, without I/O, clock or environment."""
