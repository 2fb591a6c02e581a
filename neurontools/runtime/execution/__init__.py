"""Execution of graphs: programs, time-outs, failures and collectives."""
