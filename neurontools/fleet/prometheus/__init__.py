"""Fleets from Prometheus: a few aggregate queries, never one series per core."""
