"""Counters of the runtime: torch_xla's metrics, training steps and their times."""
