"""Many hosts: what each says of itself in a kilobyte, and how that is read."""
