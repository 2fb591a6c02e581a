"""The fleet simulator: many simulated hosts in few processes."""
