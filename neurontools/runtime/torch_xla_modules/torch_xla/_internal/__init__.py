"""torch_xla._internal: the part by which Lightning finds the devices."""
