"""How a command asks the monitor daemon, is seen by it, or starts one of its own."""
