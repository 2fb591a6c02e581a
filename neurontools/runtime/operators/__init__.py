"""ATen operators, tensor layouts and call signatures: the lowest layer of the torch device."""
