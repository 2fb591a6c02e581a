"""Ground that every room stands on: text, files, errors, signals and cheap stand-ins for slow standard modules."""
