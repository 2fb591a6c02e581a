"""What to change in a training script first: rules over what a run counted. No torch, no clock, no I/O."""
