"""Utilities for all other packages: text, files, errors, signals, and light replacements of slow standard modules."""
