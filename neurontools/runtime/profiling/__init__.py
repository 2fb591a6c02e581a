"""Profiles of a training process: the ring that the runtime fills, and its consumers."""
