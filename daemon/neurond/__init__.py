"""The monitor daemon: it owns the state of one host and serves it."""
