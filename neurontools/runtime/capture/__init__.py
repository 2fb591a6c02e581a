"""Operators on their way into a graph, or at once onto the host."""
