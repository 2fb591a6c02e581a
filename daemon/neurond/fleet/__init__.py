"""A fleet to try: many simulated hosts in few processes."""
