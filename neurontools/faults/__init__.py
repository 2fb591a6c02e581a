"""Faults on demand: which kinds there are and what each shows where, and what may be asked for."""
