"""What the runtime counts for its user: torch_xla's metrics, steps of the training."""
