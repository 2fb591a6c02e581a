"""What ended: the accounts of processes that hold cores, and the log of those that held some."""
