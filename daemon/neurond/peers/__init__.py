"""Peers of connections: their identity, their open connections and their limits."""
