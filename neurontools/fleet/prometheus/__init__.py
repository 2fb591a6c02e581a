"""Many hosts as a Prometheus knows them: a few queries for aggregates, never a series a core."""
