"""Reads the state of a fleet from Prometheus, with a few aggregate queries instead of one series per core."""
