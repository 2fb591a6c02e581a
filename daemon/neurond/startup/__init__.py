"""Builds validated settings from flags, files and the environment. The serving stage does not import this package."""
