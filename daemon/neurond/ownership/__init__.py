"""Who holds which NeuronCore: the one place where it is decided. Pure: no I/O, no clock."""
