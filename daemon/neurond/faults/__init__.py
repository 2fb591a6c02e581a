"""Faults that were injected into simulated devices: what holds when, whom it meets, what it leaves behind."""
