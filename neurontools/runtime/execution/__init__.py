"""Executing graphs: programs, time-outs, failures, collectives."""
