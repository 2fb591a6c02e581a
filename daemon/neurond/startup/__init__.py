"""Turns flags, files and the environment into checked settings. The serving process never imports it."""
