"""torch_xla._internal: the part that Lightning uses to find devices."""
