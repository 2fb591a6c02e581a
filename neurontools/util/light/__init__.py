"""Stand-ins for modules of the standard library that one-shot commands can't afford."""
