"""Where the state of the devices comes from: a module for each kind of host."""
