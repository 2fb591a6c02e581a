"""torch_xla._internal: the part of it that Lightning asks which devices there are."""
